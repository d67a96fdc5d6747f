"""Octavo's `int8: {}` against the other quantizers of ONNX models, on real networks: what is kept, how fast, at which cost.

    python benchmarks/peers.py --data FOLDER --networks yolov5n,cgnet --tools ours,ort,nncf,quark --out FOLDER
    python benchmarks/peers.py ... --tools ours-openvino,nncf --openvino-python PATH    # both files in OpenVINO, interleaved
    python benchmarks/peers.py ... --networks yolov5n --views --int8 "{placement: all, fidelity: 24}"

Each quantizes the same FP32 file on the same images in a process of its own; then all results are judged in one process,
latencies interleaved. `ours-openvino` is Octavo with `target: openvino`. NNCF and Quark live in environments of their own and
are left out, with a message, where there is none. `--views` looks at each photo of a detector in eight views (`views.py`): AP over
64 photos does not tell files apart. `--int8` sets what Octavo's users may set, and nothing else.
Writes FOLDER/peers.md, FOLDER/peers.json and FOLDER/<network>/<tool>.onnx.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from arguments import at_least, environment_path, parser
from measure import FP32, judge, open_exact
from networks import CALIBRATION, NETWORKS, UNLESS_TOLD, Network, network
from octavo import cli
from octavo.errors import ModelRunError, ParamsError
from octavo.files import read_json, write_json, write_text
from octavo.params.grammar import Int8
from octavo.params.load import checked
from octavo.progress import say, working
from octavo.runtime.benchmark import peak_memory_mib
from octavo.runtime.host import fingerprint, versions
from table import markdown
from views import VIEWS, View, chosen_views

__all__ = ["TOOLS", "compare"]

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "tools"


@dataclass(frozen=True)
class Tool:
    """A quantizer.

    Attributes:
        steps: what its script is called with, in order; `{model}`, `{arrays}`, `{work}`, `{task}`, `{int8}` and `{out}` are
            filled in.
        script: the script's name in `tools/`.
        int8: settings of Octavo's `int8` block that make it this tool.
        environment: the variable that names its interpreter; None where it runs in this one.
        install: how to make that environment.
    """

    steps: Mapping[str, tuple[str, ...]]
    script: str
    environment: str | None = None
    install: str = ""
    int8: Mapping[str, Any] = field(default_factory=dict)


_ONE_STEP = {"quantize": ("{model}", "{arrays}", "{out}")}


def _ours(**int8: Any) -> Tool:
    return Tool(
        {
            "calibrate": ("calibrate", "{model}", "{arrays}", "{work}"),
            "quantize": ("quantize", "{work}", "{arrays}", "{task}", "{int8}", "{out}"),
        },
        "quantize_ours.py",
        int8=int8,
    )


TOOLS = {
    "ours": _ours(),
    "ours-openvino": _ours(target="openvino"),
    "ort": Tool(_ONE_STEP, "quantize_ort.py"),
    "nncf": Tool(
        _ONE_STEP,
        "quantize_nncf.py",
        "OCTAVO_NNCF_PYTHON",
        "python -m venv NNCF && NNCF/bin/pip install nncf==3.4 onnx onnxruntime",
    ),
    "quark": Tool(
        _ONE_STEP,
        "quantize_quark.py",
        "OCTAVO_QUARK_PYTHON",
        "python -m venv QUARK && QUARK/bin/pip install torch amd-quark onnxruntime",
    ),
}


def quantize(
    name: str,
    python: Path,
    model: Path,
    arrays: Path,
    out: Path,
    *,
    task: str = "other",
    int8: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a tool on a model; `task` is `Network.task`, `int8` what is set besides in Octavo's block of that name.

    Returns:
        Per step `seconds` and `peak_mib` of its process, and `versions`; or `failed`: the last line of what it said.
    """
    cost: dict[str, Any] = {}
    # Ours is imported from this tree, and no tool from whatever path the caller has set.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if TOOLS[name].environment is None:
        environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        places = {"model": str(model), "arrays": str(arrays), "out": str(out), "work": folder, "task": task}
        places["int8"] = json.dumps({**(int8 or {}), **TOOLS[name].int8})
        for step, pattern in TOOLS[name].steps.items():
            report = Path(folder) / f"{step}.json"
            arguments = [part.format(**places) for part in pattern]
            command = [str(python), str(SCRIPTS / TOOLS[name].script), *arguments, str(report)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, stdin=subprocess.DEVNULL, cwd=folder
            )
            if done.returncode or not report.is_file():
                return {"failed": f"{step}: {_last_line(done.stderr) or f'exit code {done.returncode}'}"}
            found = read_json(report)
            cost["versions"] = found.pop("versions")
            cost[step] = found
    return cost if out.is_file() else {"failed": "it wrote no file"}


def compare(
    chosen: Network,
    tools: Mapping[str, Path],
    out: Path,
    *,
    samples: int = CALIBRATION,
    limit: int | None = None,
    rounds: int = 40,
    openvino: Path | None = None,
    views: Sequence[View] = VIEWS[:1],
    int8: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Quantize one network with every tool and judge the results.

    Args:
        chosen: the network.
        tools: name in `TOOLS` to interpreter.
        out: a folder for the ONNX files.
        samples: calibration images at most.
        limit, rounds, openvino, views: see `measure.judge`.
        int8: what is set in Octavo's `int8` block.

    Returns:
        `fp32`, then each tool, to figures (`measure.judge`) and `cost` (`quantize`); or `failed`.
    """
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    costs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tensors = chosen.calibration(samples)
        for place, tensor in enumerate(tensors):
            np.save(Path(folder) / f"{place:05d}.npy", tensor)
        for name, python in tools.items():
            made = out / f"{name}.onnx"
            made.unlink(missing_ok=True)
            with working(f"{chosen.name}: {name}"):
                costs[name] = quantize(
                    name, python, chosen.file.absolute(), Path(folder), made.absolute(), task=chosen.task, int8=int8
                )
                if "failed" not in costs[name]:
                    costs[name] |= _runs(made, tensors[0])
            if "failed" in costs[name]:
                say(f"{chosen.name}: {name} failed: {costs[name]['failed']}")
    variants = {name: out / f"{name}.onnx" for name, cost in costs.items() if "failed" not in cost}
    judged = judge(chosen, variants, limit=limit, rounds=rounds, openvino=openvino, views=views)
    for name in (FP32, *tools):
        cost = costs.get(name, {})
        results[name] = {"failed": cost["failed"]} if "failed" in cost else judged[name] | ({"cost": cost} if cost else {})
    return results


def _runs(model: Path, tensor: np.ndarray) -> dict[str, Any]:
    """Run the file in a process of its own first: a graph on which ONNX Runtime crashes must not take the others with it."""
    try:
        session, optimized = open_exact(model)
        feeds = {session.inputs[0]: tensor}
        return {"inference_mib": peak_memory_mib(model, feeds, provider="cpu", threads=2)} if optimized else {}
    except ModelRunError as error:
        return {"failed": f"its file does not run: {error.problem}"}


def _last_line(text: str) -> str:
    """Of ours the one before the way out, which speaks of a project's settings."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("to mend: ")]
    return lines[-1] if lines else ""


def _interpreters(given: Any, names: Sequence[str]) -> dict[str, Path]:
    """The tools that can run here; the others are named with the way to install them."""
    found: dict[str, Path] = {}
    for name in names:
        tool = TOOLS[name]
        python = Path(sys.executable) if tool.environment is None else getattr(given, f"{name}_python")
        if python is None:
            say(f"{name} is left out: make an environment ({tool.install}), then --{name}-python PATH or {tool.environment}=PATH")
        elif not python.exists():
            raise ParamsError(f"--{name}-python: no interpreter {python}", f"make one: {tool.install}")
        else:
            # Tools run in a folder of their own.
            found[name] = python.absolute()
    return found


def _names(text: str, known: Sequence[str], option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ParamsError(f"{option}: {', '.join(unknown) or 'nothing'} is not known", f"use some of: {', '.join(known)}")
    return names


def _settings(text: str) -> dict[str, Any]:
    """An `int8` block; what is wrong with it, in params.yaml's own words."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ParamsError(f"--int8 is no YAML: {error}", 'write it like --int8 "{placement: all}"') from error
    checked(Int8, found, "--int8")
    return found


def main() -> None:
    """Parse, compare each network, write the table after each."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--networks", default=",".join(UNLESS_TOLD), metavar="A,B", help=f"of: {', '.join(NETWORKS)} (default: %(default)s)"
    )
    arguments.add_argument("--tools", default=",".join(TOOLS), metavar="A,B", help=f"of: {', '.join(TOOLS)} (default: all)")
    arguments.add_argument("--samples", type=at_least(4), default=CALIBRATION, help=f"calibration images (default: {CALIBRATION})")
    arguments.add_argument(
        "--int8", type=_settings, default={}, metavar="YAML", help="settings of Octavo's int8 block (default: none)"
    )
    arguments.add_argument("--out", type=Path, required=True, help="folder for the tables and the ONNX files")
    for name, tool in TOOLS.items():
        if tool.environment:
            option = f"--{name}-python"
            arguments.add_argument(
                option, type=Path, default=environment_path(tool.environment), help=f"its interpreter (or {tool.environment})"
            )
    given = arguments.parse_args()
    wanted = _names(given.networks, list(NETWORKS), "--networks")
    tools = _interpreters(given, _names(given.tools, list(TOOLS), "--tools"))
    chosen = [network(name, given.data, given.models) for name in wanted]
    given.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"host": fingerprint(), "versions": versions(), "samples": given.samples, "networks": {}}
    views = chosen_views(given.views)
    record |= {"views": len(views), "int8": given.int8}
    for each in chosen:
        record["networks"][each.name] = compare(
            each,
            tools,
            given.out / each.name,
            samples=given.samples,
            limit=given.limit,
            rounds=given.rounds,
            openvino=given.openvino_python,
            views=views,
            int8=given.int8,
        )
        write_json(given.out / "peers.json", record)
        write_text(given.out / "peers.md", markdown(record))
        say(f"{each.name}: done")
    say(markdown(record))


if __name__ == "__main__":
    cli.run(main)
