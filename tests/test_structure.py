"""The house reads as it is drawn: dvc.yaml names each stage's rooms, imports point downwards, torch stays optional."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from forked import run_stage
from rooms import imported_rooms

from octavo.runtime.environment import GROUPS

STAGES = sorted(path.stem for path in (ROOT / "stages").glob("*.py"))
NEEDS_TORCH = {"export"}
READING = ".octavo/reading/${key}.json"


def stage_definition(name: str) -> dict:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return stages[name].get("do", stages[name])


def test_every_script_is_a_stage_and_every_stage_a_script():
    assert sorted(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]) == STAGES


@pytest.mark.parametrize("name", STAGES)
def test_stages_depend_on_the_packages_that_they_are_made_by(name):
    named = {dep for dep in stage_definition(name)["deps"] if dep.startswith(".octavo/")}
    groups = {"prepare": "images", "export": "training", "qat": "training", "machine": "", "report": ""}
    group = groups.get(name, "runtime")
    assert named - {READING} == ({f".octavo/{group}.json"} if group else set()) | (
        {".octavo/host.json"} if name == "benchmark" else set()
    )


@pytest.mark.parametrize("name", STAGES)
def test_stages_that_calibration_images_make_run_again_where_these_are_read_otherwise(name):
    stage = stage_definition(name)
    watched = {key for key in stage.get("params", []) if isinstance(key, str)}
    reads = "models.${key}.data.calibration" in watched
    whole = watched & {"models.${key}", "models.${key}.data"}
    assert (READING in stage["deps"]) is (reads and not whole)


def test_every_dependency_of_the_project_is_one_that_makes_results_or_one_that_does_not():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *declared["dependencies"],
        *(one for extra in ("cpu", "torch", "transformers") for one in declared["optional-dependencies"][extra]),
    ]
    names = {re.split(r"[^a-z0-9-]", one)[0].replace("opencv-python-headless", "opencv") for one in asked}
    assert names - set(GROUPS["training"]) == {"psutil", "pydantic", "pyyaml", "rich"}


@pytest.mark.parametrize("name", STAGES)
def test_dvc_yaml_names_exactly_the_rooms_that_a_stage_imports(name):
    deps = stage_definition(name)["deps"]
    listed = {dep for dep in deps if dep.startswith("octavo")}
    assert listed == imported_rooms(ROOT / "stages" / f"{name}.py")
    assert f"stages/{name}.py" in deps
    assert len(deps) == len(set(deps))


@pytest.mark.parametrize("name", STAGES)
def test_commands_run_through_octavo_run_and_figures_are_in_git(name):
    stage = stage_definition(name)
    assert f"{stage['cmd']} ".startswith(f"$OCTAVO_RUN python stages/{name}.py ")
    for kind in ("outs", "metrics", "plots"):
        for output in stage.get(kind, []):
            ((path, options),) = output.items() if isinstance(output, dict) else ((output, {}),)
            assert options.get("persist", False) is (name == "qat"), "DVC's run-cache leaves stages with persist aside"
            if kind != "outs" and not path.endswith("/pictures"):
                assert options["cache"] is False, "figures are reviewed in git"


def test_the_room_finder_can_find(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("from octavo.images.decode import read_image\n")
    assert imported_rooms(script) == {"octavo/images", "octavo/params", "octavo/errors.py"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_script_is_short_and_has_help(name):
    assert len((ROOT / "stages" / f"{name}.py").read_text().splitlines()) < 100
    shown = run_stage(name, "--help")
    assert shown.returncode == 0
    assert "--model NAME" in shown.stdout


def test_imports_point_downwards():
    checked = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, env={"PATH": "/bin"}, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", STAGES)
def test_no_stage_depends_on_the_commands(name):
    assert imported_rooms(ROOT / "stages" / f"{name}.py").isdisjoint({"octavo/commands", "octavo/intake", "octavo/__main__.py"})


def test_every_command_is_in_the_readme():
    from octavo.commands import COMMANDS

    readme = (ROOT / "README.md").read_text()
    assert all(f"`octavo {name} " in readme for name in COMMANDS)


def test_torch_is_not_needed():
    """Importing the stages with torch made unimportable."""
    stages = ", ".join(name for name in STAGES if name not in NEEDS_TORCH)
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'torchvision', 'torchao'])); sys.path.insert(0, 'stages'); "
        f"import {stages}"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_locks_are_hashed_and_name_no_host():
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text
        pins = [line for line in text.splitlines() if "==" in line and not line.startswith((" ", "#"))]
        assert pins
        assert all(line.endswith("\\") for line in pins), "each pin is followed by its hashes"
