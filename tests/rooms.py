"""Which rooms of octavo/ a stage script imports, directly or through another room; the truth that dvc.yaml is held against."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def imported_rooms(script: Path) -> set[str]:
    """Paths below the repository (`octavo/images`, `octavo/cli.py`) of every room that the script's imports reach."""
    graph = grimp.build_graph("octavo", cache_dir=None)
    direct = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            direct |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            direct |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    # The package itself holds a docstring and a version: nothing that a stage could depend on.
    modules = {name for name in direct if name in graph.modules and name != "octavo"}
    for name in list(modules):
        modules |= graph.find_upstream_modules(name)
    return {room(name) for name in modules}


def room(module: str) -> str:
    """`octavo.images.decode` lives in `octavo/images`, `octavo.cli` in `octavo/cli.py`."""
    parts = module.split(".")
    return f"octavo/{parts[1]}" if (ROOT / "octavo" / parts[1]).is_dir() else f"octavo/{parts[1]}.py"
