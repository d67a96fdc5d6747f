"""No line of the library, the stages or the benchmarks loads a pickle, runs text as code, or opens a file past the doors."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT

FILES = sorted(path for folder in ("octavo", "stages", "benchmarks", "data", "examples") for path in (ROOT / folder).rglob("*.py"))
# Modules that load pickles or run code out of files; of pickle only the name of its error.
MODULES = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve"}
IMPORTS = {("pickle", "UnpicklingError")}
# Calls that are refused wherever they stand.
CALLS = {
    "commands.getoutput",
    "eval",
    "exec",
    "os.popen",
    "os.system",
    "runpy.run_path",
    "shutil.unpack_archive",
    "tempfile.mktemp",
    "torch.hub.load",
    "torch.package.PackageImporter",
    "yaml.full_load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "xml.etree.ElementTree.fromstring",
    "xml.etree.ElementTree.parse",
}
# Calls that one module makes, the door that the others go through; and what it is.
DOORS = {
    "Image.open": ("octavo/images/decode.py", "sizes by the header, formats by name"),
    "cv2.imdecode": ("", "Pillow reads images: octavo.images.decode"),
    "cv2.imread": ("", "Pillow reads images: octavo.images.decode"),
    "torch.jit.load": ("octavo/sources/torch_export.py", "TorchScript that the same function wrote"),
    "import_module": ("octavo/sources/torch_build.py", "`source.entry`, which is code by design"),
}
# Modules of ours by names of ours.
REGISTRIES = {"octavo/sources/__init__.py", "octavo/sources/trainable.py", "octavo/commands/__init__.py"}


def dotted(node: ast.AST) -> str:
    """`a.b.c` of such an expression, else nothing."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> object:
    """A keyword's value as source; None where it is not given."""
    return next((ast.unparse(one.value) for one in call.keywords if one.arg == name), None)


def safe_loader(text: object, tree: ast.AST) -> bool:
    """Whether a Loader is the safe one, or a class of this file made of it."""
    classes = {one.name: [dotted(base) for base in one.bases] for one in ast.walk(tree) if isinstance(one, ast.ClassDef)}
    return text in ("yaml.SafeLoader", "yaml.CSafeLoader") or classes.get(str(text)) == ["yaml.SafeLoader"]


# Name of a call -> whether this one is refused.
RULES: dict[str, Callable[[ast.Call, ast.AST], bool]] = {
    "torch.load": lambda call, tree: keyword(call, "weights_only") != "True",
    "np.load": lambda call, tree: keyword(call, "allow_pickle") not in (None, "False"),
    "numpy.load": lambda call, tree: keyword(call, "allow_pickle") not in (None, "False"),
    "yaml.load": lambda call, tree: not safe_loader(keyword(call, "Loader"), tree),
}


def found(tree: ast.AST, name: str) -> Iterator[str]:
    """What is refused in a file, with its line."""
    ours = name.startswith(("octavo/", "stages/"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"{name}:{node.lineno} import {one.name}" for one in node.names if one.name.split(".")[0] in MODULES)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield from (f"{name}:{node.lineno} {one.name}" for one in node.names if (node.module, one.name) not in IMPORTS)
        if not isinstance(node, ast.Call):
            continue
        called, here = dotted(node.func), f"{name}:{node.lineno} {ast.unparse(node)[:100]}"
        last = called.rsplit(".", 1)[-1]
        if called in CALLS or last in ("extractall", "__import__") or RULES.get(called, lambda *_: False)(node, tree):
            yield here
        if keyword(node, "shell") not in (None, "False") or keyword(node, "trust_remote_code") not in (None, "False"):
            yield here
        if last == "from_pretrained" and keyword(node, "use_safetensors") != "True":
            yield here
        door = next((place for call, (place, _) in DOORS.items() if called == call or called.endswith(f".{call}")), None)
        if ours and door is not None and name != door and not (last == "import_module" and name in REGISTRIES):
            yield here


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_forbidden_is_called(path: Path):
    name = path.relative_to(ROOT).as_posix()
    assert list(found(ast.parse(path.read_text(encoding="utf-8")), name)) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.load('x')",
        "torch.load('x', weights_only=False)",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=chosen)",
        "yaml.load(s)",
        "yaml.load(s, Loader=yaml.Loader)",
        "yaml.load(s, Loader=Mine)",
        "yaml.unsafe_load(s)",
        "import pickle",
        "from pickle import loads, UnpicklingError",
        "import joblib.numpy_pickle",
        "eval(text)",
        "exec(text)",
        "__import__(text)",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "tarfile.open('x').extractall()",
        "AutoModel.from_pretrained('x')",
        "AutoModel.from_pretrained('x', use_safetensors=True, trust_remote_code=True)",
        "Image.open('x')",
        "PIL.Image.open('x')",
        "cv2.imread('x')",
        "torch.jit.load('x')",
        "importlib.import_module(name)",
        "import_module(name)",
        "xml.etree.ElementTree.parse('x')",
    ],
)
def test_the_walk_sees_what_is_forbidden(line):
    assert list(found(ast.parse(line), "octavo/x.py"))


@pytest.mark.parametrize(
    "line",
    [
        "torch.load('x', weights_only=True)",
        "np.load('x')",
        "module.eval()",
        "yaml.safe_load(s)",
        "from pickle import UnpicklingError",
    ],
)
def test_and_lets_the_rest_be(line):
    assert not list(found(ast.parse(line), "octavo/x.py"))
