"""Function bodies of custom operators: read from a file or shipped, and held against the nodes that they are for.

A body is ONNX, never Python: reading a model must not run code. The file is a model whose `functions` hold one with the operator's
name (where there is one such function, its domain does not matter) and those that it calls; its graph is not looked at.
`octavo.graph.custom_ops.efficient_nms` shows how onnxscript writes one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from octavo.errors import SourceError
from octavo.files import sha256_bytes
from octavo.graph.custom_ops.names import ONNX, parts
from octavo.graph.inspect import RUNTIME_DOMAINS

__all__ = ["Body", "read_body", "serialized", "shipped_body"]

SHIPPED = ("EfficientNMS_TRT",)
# By these TensorRT's parser finds a plugin; they say nothing of what it computes.
_FINDS = frozenset({"plugin_namespace", "plugin_version"})
_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


@dataclass(frozen=True)
class Body:
    """What computes a custom operator.

    Attributes:
        op_type: the operator, or `domain::operator` where it is the one of that domain alone.
        data: the model with the functions, as bytes.
        origin: `shipped`, or the name of the user's file.
        where: the setting and file, for errors.
    """

    op_type: str
    data: bytes
    origin: str
    where: str

    @property
    def sha256(self) -> str:
        """Hash of the file."""
        return sha256_bytes(self.data)

    def functions(self) -> list[onnx.FunctionProto]:
        """The operator's function, first, and the others of the file."""
        found = list(onnx.load_from_string(self.data).functions)
        for function in found:
            # ONNX's domain has two spellings; ONNX Runtime's tools look for one of them.
            for part in (*_nodes(function.node), *function.opset_import):
                part.domain = "" if part.domain in ONNX else part.domain
        domain, name = parts(self.op_type)
        return sorted(found, key=lambda function: (function.name != name, function.domain != domain))

    def check(self, nodes: Sequence[ir.Node], opset: int) -> list[str]:
        """Hold the body against the nodes that call it.

        Args:
            nodes: all of this operator.
            opset: the model's, at which ONNX Runtime reads the body too.

        Returns:
            Notes: attributes of nodes that the body has no word for.

        Raises:
            SourceError: inputs, outputs or attributes do not fit, an operator in it is none of this opset or needs an input that
                a node leaves out, or it is not valid ONNX.
        """
        function = self.functions()[0]
        alike = len({len(node.inputs) for node in nodes}) == 1
        ignored: set[str] = set()
        for node in nodes:
            for what, mine, its in (
                ("inputs", function.input, node.inputs),
                ("outputs", function.output, node.outputs),
            ):
                if len(mine) != len(its):
                    raise self._unfit(
                        f"has {len(mine)} {what} ({', '.join(mine)}), node {node.name!r} has {len(its)}",
                        f"write the function with the {what} of the node" if alike or what == "outputs" else self._left_out(),
                    )
            lacking = sorted(set(function.attribute) - set(node.attributes))
            if lacking:
                raise self._unfit(
                    f"needs the attribute {lacking[0]!r}, which node {node.name!r} does not set",
                    "give it a default in the function",
                )
            known = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
            ignored |= set(node.attributes) - known - _FINDS
        for part in self.functions():
            self._check_operators(part, opset)
            self._check_form(part)
        for node in nodes:
            for name, value in zip(function.input, node.inputs, strict=True):
                if value is None:
                    self._check_without(function, name, node, opset)
        return [f"{self.op_type}'s body takes no account of its attribute {name!r}" for name in sorted(ignored)]

    def _check_operators(self, function: onnx.FunctionProto, opset: int) -> None:
        called = {part.name for part in self.functions()}
        for node in _nodes(function.node):
            if node.domain not in ONNX:
                # ONNX Runtime's own operators are not in the onnx package: loading the model tells.
                if node.op_type not in called and node.domain not in RUNTIME_DOMAINS:
                    raise self._unfit(
                        f"uses {node.domain}.{node.op_type}, which is neither ONNX nor in the file", "put that function in, too"
                    )
                continue
            if not onnx.defs.has(node.op_type, opset, ""):
                raise self._unfit(f"uses {node.op_type}, which is no operator of opset {opset}", _rewrite(opset))
            schema = onnx.defs.get_schema(node.op_type, opset, "")
            foreign = sorted({attribute.name for attribute in node.attribute} - set(schema.attributes))
            if foreign or not schema.min_input <= len(node.input) <= schema.max_input:
                what = f"attribute {foreign[0]!r}" if foreign else f"{len(node.input)} inputs"
                raise self._unfit(
                    f"uses {node.op_type} with {what}, which opset {opset} does not have; the model is read at that opset",
                    _rewrite(opset),
                )

    def _check_without(self, function: onnx.FunctionProto, name: str, node: ir.Node, opset: int) -> None:
        for inner in _nodes(function.node):
            # What functions and ONNX Runtime's operators need, loading the model tells.
            formal = onnx.defs.get_schema(inner.op_type, opset, "").inputs if inner.domain in ONNX else ()
            for place, read in enumerate(inner.input):
                if read == name and formal and formal[min(place, len(formal) - 1)].option != _OPTIONAL:
                    raise self._unfit(
                        f"computes {inner.op_type} of its input {name!r}, which node {node.name!r} leaves out", self._left_out()
                    )

    def _left_out(self) -> str:
        return (
            "no body serves nodes with and without an input that it computes with: give that input to each node (zeros to what is "
            f"added), or cut the graph before the operator: `source.custom_ops: {{{self.op_type}: null}}`"
        )

    def _check_form(self, function: onnx.FunctionProto) -> None:
        mend = "write the function so that each of its nodes stands behind those it reads, and each output is made"
        try:
            onnx.checker.check_function(function)
        except onnx.checker.ValidationError as error:
            raise self._unfit(f"is not valid ONNX: {' '.join(str(error).split())}", mend) from error
        unmade = sorted(set(function.output) - {name for node in function.node for name in node.output} - set(function.input))
        if unmade:
            raise self._unfit(f"makes no output {unmade[0]!r}", mend)

    def _unfit(self, problem: str, mend: str) -> SourceError:
        return SourceError(f"{self.where}: the function {self.op_type!r} {problem}", mend)


def shipped_body(op_type: str, nodes: Sequence[ir.Node]) -> Body | None:
    """The body that Octavo brings for an operator, or None."""
    if op_type not in SHIPPED:
        return None
    # onnxscript takes a second to import and is only needed here.
    from octavo.graph.custom_ops.efficient_nms import efficient_nms

    counts = {len(node.inputs) for node in nodes}
    data = serialized(efficient_nms(3 if counts == {3} else 2))
    return Body(op_type, data, "shipped", f"the shipped body of {op_type}")


def read_body(op_type: str, path: str | Path, setting: str) -> Body:
    """A body out of a user's file.

    Args:
        op_type: the name of the function, or `domain::name`.
        path: the .onnx file: a model with the function, or the function alone.
        setting: what named the file, for errors.

    Raises:
        SourceError: no such file, it is not ONNX, or it has no function of that name, or several and none of that domain.
    """
    path = Path(path)
    where = f"{setting}: {path}"
    if not path.is_file():
        raise SourceError(f"{where}: no such file", f"name an .onnx file with a function {op_type!r}, or null to leave it out")
    data = path.read_bytes()
    try:
        data = _as_model(data)
        functions = onnx.load_from_string(data).functions
    except DecodeError as error:
        hint = "; Python is not run: write the function to an .onnx file with it" if path.suffix == ".py" else ""
        raise SourceError(f"{where}: is not an ONNX file{hint}", "see README, custom operators") from error
    domain, name = parts(op_type)
    names = [function.name for function in functions]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise SourceError(
            f"{where}: has no function {name!r}; its functions: {', '.join(names) or 'none'}",
            f"did you mean {near[0]!r}? Rename it to the operator's name" if near else "see README, custom operators",
        )
    domains = [function.domain for function in functions if function.name == name]
    if len(domains) > 1 and domain not in domains:
        raise SourceError(
            f"{where}: has a function {name!r} in each of the domains {', '.join(map(repr, domains))}, and which is meant is open",
            f"name the operator with the domain that it has in the graph and in that file, as `{domains[0]}::{name}`",
        )
    return Body(op_type, data, path.name, where)


def _as_model(data: bytes) -> bytes:
    """A file of functions as it is; of one that holds a FunctionProto alone a model with it."""
    try:
        function = onnx.FunctionProto.FromString(data)
    except DecodeError:
        return data
    return serialized([function]) if function.name and function.node else data


def serialized(functions: Iterable[onnx.FunctionProto]) -> bytes:
    """A file of functions: a model with an empty graph; domains that functions call are imported. Equal functions, equal bytes."""
    functions = [onnx.FunctionProto.FromString(function.SerializeToString()) for function in functions]
    for function in functions:
        imported = {entry.domain for entry in function.opset_import}
        for domain in sorted({node.domain for node in _nodes(function.node)} - imported):
            function.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    domains = {entry.domain: entry.version for function in functions for entry in function.opset_import}
    domains |= {function.domain: 1 for function in functions}
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], "functions", [], []),
        functions=functions,
        opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in sorted(domains.items())],
        ir_version=8,
    )
    return model.SerializeToString(deterministic=True)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _nodes(graph.node)


def _rewrite(opset: int) -> str:
    return f"write the body at opset {opset}, or set `source.opset` to the body's"
