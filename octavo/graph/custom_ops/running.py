"""A model with custom operators as graphs that ONNX Runtime runs, and back."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from octavo.errors import SourceError
from octavo.files import scratch_written_to, sha256_bytes
from octavo.graph.custom_ops.bodies import Body
from octavo.graph.custom_ops.cut import Chosen, cut, reads, rejoin, tail
from octavo.graph.custom_ops.names import ONNX, called, isolate, operator, stand_in, to_file
from octavo.graph.inspect import RUNTIME_DOMAINS
from octavo.graph.io import load, save
from octavo.graph.operators import LAYERS
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass

__all__ = ["CustomOps", "all_nodes"]

# Below models/<model>/fp32.
FOLDER = "custom_ops"


@dataclass(frozen=True)
class CustomOps:
    """The custom operators of one model.

    Attributes:
        bodies: operator, or `domain::operator`, to its body; None where there is none, and graphs are cut before it.
    """

    bodies: Mapping[str, Body | None] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path, manifest: Mapping[str, Any]) -> CustomOps:
        """The operators that the manifest of models/<model>/fp32 records, bodies from beside it.

        Raises:
            SourceError: a body is missing or another one.
        """
        bodies: dict[str, Body | None] = {}
        for op_type, record in manifest.get("custom_ops", {}).items():
            if record["body"] is None:
                bodies[op_type] = None
                continue
            path = Path(folder) / _file(op_type)
            data = path.read_bytes() if path.is_file() else b""
            if sha256_bytes(data) != record["sha256"] or record["body"] != _file(op_type):
                raise SourceError(f"{path} is not the body that the manifest describes", "run `dvc checkout`, or `dvc repro`")
            bodies[op_type] = Body(op_type, data, record["origin"], str(path))
        return cls(bodies)

    def write(self, folder: str | Path) -> None:
        """Put the bodies beside the model: later stages need that folder only."""
        for op_type, body in self.bodies.items():
            if body is not None:
                path = Path(folder) / _file(op_type)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(body.data)

    def record(self) -> dict[str, dict[str, str | None]]:
        """For manifests: operator to `body` (its file below models/<model>/fp32), `sha256` and `origin`; body null: cut off."""
        return {
            op_type: {"body": _file(op_type), "sha256": body.sha256, "origin": body.origin} if body is not None else {"body": None}
            for op_type, body in self.bodies.items()
        }

    def origin(self) -> dict[str, str]:
        """For statistics: what stood in for the operators while they were made; empty where the graph has none."""
        told = json.dumps({op_type: body.sha256 if body else None for op_type, body in sorted(self.bodies.items())})
        return {"custom_ops": sha256_bytes(told.encode())} if self.bodies else {}

    def metrics(self) -> dict[str, str]:
        """For the metrics' records and the log: `custom_ops.<operator>` is how it was run."""
        return {
            f"custom_ops.{op_type}": "cut, with all that lies behind it" if body is None else f"body ({body.origin})"
            for op_type, body in self.bodies.items()
        }

    def described(self) -> str | None:
        """What errors call a graph with the bodies in it; None where it has none."""
        bodies = [body.where for body in self.bodies.values() if body is not None]
        return f"the graph with the body of {', '.join(bodies)}" if bodies else None

    def whole(self, model: ir.Model) -> ir.Model:
        """A copy that runs: bodies attached, cut where there is none; the model itself where it has no custom operator."""
        if not self.bodies:
            return model
        copy = self.attached(model)
        cut(copy, self._without_body(copy), measured=False)
        return copy

    def part(self, model: ir.Model) -> ir.Model:
        """What is calibrated and quantized: as `whole`, and cut before post-processing too.

        That is a custom operator with no layer (Conv, Gemm, MatMul) behind it. There is nothing to quantize then, and what such an
        operator reads tells how close two models are; selected boxes do not, as one more or less moves all others.
        """
        if not self.bodies:
            return model
        copy = self.attached(model)
        cut(copy, self._ends(copy), measured=True)
        return copy

    def restore(self, made: ir.Model, original: ir.Model) -> ir.Model:
        """What was made from `part(original)` as it goes into a file: with all its custom operators and without bodies.

        What comes back is converted to the opset of `made`, which may be higher.

        Raises:
            SourceError: one of the custom operators is gone.
        """
        if not self.bodies:
            return made
        whole = self.isolated(original)
        OpsetUpPass(made.opset_imports[""])(whole)
        rejoin(made, whole, self._ends(whole))
        self._refuse_lost(made, whole)
        return self.detached(made)

    def _refuse_lost(self, made: ir.Model, original: ir.Model) -> None:
        lost = Counter(map(self._called, self._nodes(original))) - Counter(map(self._called, self._nodes(made)))
        for op_type, count in lost.items():
            raise SourceError(
                f"quantization lost {count} of the nodes of the custom operator {op_type!r}",
                f"leave it, and what lies behind it, out of quantization: `source.custom_ops: {{{op_type}: null}}`",
            )

    def _nodes(self, model: ir.Model) -> list[ir.Node]:
        return [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if self._custom(node, model)]

    def untouched(self, model: ir.Model) -> list[tuple[str, str, str]]:
        """(node, op type, reason) of the nodes that `part` leaves out."""
        if not self.bodies:
            return []
        whole = self.attached(model)
        off = tail(whole.graph, self._ends(whole))
        return [
            (node.name or "", operator(node), "custom operator" if self._custom(node, whole) else "lies behind a custom operator")
            for node in off
        ]

    def float_anyway(self, model: ir.Model) -> list[tuple[str, str]]:
        """(node, op type) of all that quantization leaves as it is: the custom operators, and what `part` leaves out."""
        custom = [(node.name or "", operator(node)) for node in (self._nodes(model) if self.bodies else ())]
        return [*custom, *((name, op_type) for name, op_type, _ in self.untouched(model))]

    def compared(self, model: ir.Model) -> list[str]:
        """Names of the tensors by which variants are compared: outputs, and what cut-off operators read."""
        return [value.name or "" for value in self.part(model).graph.outputs]

    def ends(self, model: ir.Model) -> list[ir.Node]:
        """The operators without a body that a graph is cut before, and that read nothing of what is cut off."""
        chosen = self._without_body(model)
        off = tail(model.graph, chosen)
        return [node for node in off if chosen(node) and not any(value.producer() in off for value in reads(node))]

    @contextmanager
    def files(self, paths: Mapping[str, Path], outputs: Sequence[str] = ()) -> Iterator[dict[str, Path]]:
        """Files of variants as ONNX Runtime runs them: temporary ones where there are custom operators, else these.

        Args:
            outputs: tensors that are made outputs besides (what `compared` names).

        Raises:
            OutputError: the system's temporary folder has no room for them.
        """
        if not self.bodies:
            yield dict(paths)
            return
        with tempfile.TemporaryDirectory() as folder:
            runs = {}
            for variant, path in paths.items():
                model = self.whole(load(path))
                present = {value.name for value in model.graph.outputs}
                values = {value.name: value for node in model.graph for value in node.outputs}
                model.graph.outputs.extend(values[name] for name in outputs if name not in present)
                runs[variant] = Path(folder) / variant / path.name
                with scratch_written_to(Path(folder)):
                    runs[variant].parent.mkdir(parents=True)
                    save(model, runs[variant])
            yield runs

    def isolated(self, model: ir.Model) -> ir.Model:
        """A copy in which no custom operator has the domain or the op type of an ONNX one (`octavo.graph.custom_ops.names`)."""
        copy = model.clone()
        for node in list(all_nodes(copy)):
            if self._custom(node, copy):
                isolate(node)
                for imports in (copy.opset_imports, *(function.opset_imports for function in copy.functions.values())):
                    imports.setdefault(node.domain, 1)
        return copy

    def attached(self, model: ir.Model) -> ir.Model:
        """A copy as `isolated`, with the bodies as local functions."""
        copy = self.isolated(model)
        for domain, op_type in sorted({(node.domain, self._called(node)) for node in all_nodes(copy) if self._custom(node, copy)}):
            body = self.bodies[op_type]
            if body is not None:
                _attach(copy, body, domain)
        return copy

    def detached(self, model: ir.Model) -> ir.Model:
        """The model, in place, without bodies and with its operators named as in their file."""
        model.functions.clear()
        for node in list(all_nodes(model)):
            to_file(node)
        common.RemoveUnusedOpsetsPass()(model)
        return model

    def _called(self, node: ir.Node) -> str:
        return called(node, self.bodies)

    def _custom(self, node: ir.Node, model: ir.Model) -> bool:
        if self._called(node) not in self.bodies or node.domain in RUNTIME_DOMAINS:
            return False
        opset = model.opset_imports.get("", 1)
        return node.domain not in ONNX or not onnx.defs.has(node.op_type, opset, "")

    def _without_body(self, model: ir.Model) -> Chosen:
        return lambda node: self._custom(node, model) and self.bodies[self._called(node)] is None

    def _ends(self, model: ir.Model) -> Chosen:
        """Picks the operators without a body, and those that no layer lies behind."""
        ends = set()
        for node in all_nodes(model):
            if self._custom(node, model):
                behind = tail(model.graph, lambda other, name=node.name: other.name == name)
                if self.bodies[self._called(node)] is None or not any(other.op_type in LAYERS for other in behind):
                    ends.add(node.name)
        return lambda node: node.name in ends and self._called(node) in self.bodies


def _attach(model: ir.Model, body: Body, domain: str) -> None:
    for place, function in enumerate(body.functions()):
        if place == 0:
            function.domain, function.name = domain, stand_in(function.name)
        made = ir.serde.deserialize_function(function)
        # ONNX Runtime reads a function at the model's opset; `Body.check` has seen that it can.
        made.opset_imports[""] = model.opset_imports[""]
        other = model.functions.setdefault(made.identifier(), made)
        if other is not made and ir.to_proto(other) != ir.to_proto(made):
            raise SourceError(f"{body.where}: two bodies have different functions {made.name!r}", "give one of them another name")
        for used, version in (*made.opset_imports.items(), (made.domain, 1)):
            model.opset_imports.setdefault(used, version)


def _file(op_type: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", op_type)
    # `My.Scale` and `My_Scale` are two operators.
    return f"{FOLDER}/{plain if plain == op_type else f'{plain}-{sha256_bytes(op_type.encode())[:8]}'}.onnx"


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of the graph, of all subgraphs and of local functions."""
    for body in (model.graph, *model.functions.values()):
        yield from ir.traversal.RecursiveGraphIterator(body)
