"""`octavo review` and `octavo gate` on a real git and DVC repository with two branches; every state that a clone can be in."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image
from repositories import sh
from review_project import change_params, change_record, commit, make_project, write_resolutions

from octavo.commands import main
from octavo.errors import ParamsError
from octavo.params.grammar import Gates
from octavo.review.assets import Assets
from octavo.review.comment import comment
from octavo.review.markdown import LIMIT, MARKER, Section, code, compose
from octavo.verdicts import verdicts

pytestmark = pytest.mark.usefixtures("own_settings")

GITHUB = 65_536


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("review") / "project"
    make_project(folder)
    return folder


@pytest.fixture
def project(made, tmp_path, monkeypatch) -> Path:
    """A copy on branch `change`, made the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(made, folder, symlinks=True)
    monkeypatch.chdir(folder)
    sh(folder, "git", "switch", "-qc", "change")
    return folder


def review(base: str = "main", head: str | None = None, assets: Assets | None = None) -> str:
    text = comment(base, head, assets)
    assert text.startswith(MARKER + "\n")
    assert "Traceback" not in text
    for several in re.findall(r"(?:^\|.*\n)+", text, re.M):
        # Rows have as many cells as their header: nothing in one ends it.
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in several.splitlines()}) == 1, several
    return text


def part(text: str, title: str) -> str:
    return text.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0].split("\n---\n", maxsplit=1)[0]


def lose(record: dict) -> None:
    """INT8 of `road` keeps too little, surely."""
    record |= {"int8.retained": 0.912, "int8.retained_low": 0.88, "int8.retained_high": 0.94, "int8.gate.retained": "fail"}
    record |= {"int8.miou": 0.7519}


def doubt(record: dict) -> None:
    record |= {"int8.retained": 0.98, "int8.retained_low": 0.95, "int8.retained_high": 1.01, "int8.gate.retained": "inconclusive"}


class TestComment:
    def test_its_parts_in_order(self, project):
        change_record(project, "road", "accuracy", lose)
        change_record(project, "faces", "accuracy", doubt)
        change_params(project, lambda models: models["road"]["int8"].update(method="minmax"))
        text = review()
        assert text.splitlines()[2] == "## Octavo: 1 gate fails, 1 inconclusive, 21 pass"
        assert "**2 gates that passed at the base do not pass now.**" in text
        titles = re.findall(r"^### (.*)$", text, re.M)
        assert titles == ["Gates", "Figures", "Parameters", "Latency", "Plots", "Worst picture"]
        rows = [line for line in part(text, "Gates").splitlines() if line.startswith("| `")]
        assert rows[0] == "| `road` | `int8 retained` | **fail**, **was pass** | 0.912 [0.880, 0.940] | 0.99 |"
        assert rows[1] == "| `faces` | `int8 retained` | **inconclusive**, **was pass** | 0.980 [0.950, 1.010] | 0.99 |"
        assert part(text, "Gates").index("<details>") < part(text, "Gates").index(rows[2])
        assert "| `road` | `int8 miou` | 0.8241 | 0.7519 | -0.0722 |" in text
        assert "| `road` | `int8 retained` | 0.9996 | 0.9120 [0.8800, 0.9400] | -0.0876 |" in text
        assert "| `models.road.int8.method` | - | `minmax` |" in text

    def test_figures_are_those_of_dvc_metrics_diff(self, project):
        change_record(project, "road", "accuracy", lose)
        change_record(project, "road", "accuracy", lambda record: record.update({"int8.iou.pole": 0.5}))
        text = review()
        found = json.loads(sh(project, "dvc", "metrics", "diff", "main", "--json"))["metrics/road/accuracy.json"]
        for key, pair in found.items():
            if ".gate." not in key and not key.endswith(("_low", "_high")):
                name = key.replace(".", " ", 1)
                assert f"| `road` | `{name}` | {pair['old']:.4f} | {pair['new']:.4f}" in text
        # A class's own figure unfolds.
        assert part(text, "Figures").index("<details>") < part(text, "Figures").index("`int8 iou.pole`")

    def test_the_merge_base_counts_and_not_where_main_is_now(self, project):
        change_record(project, "road", "accuracy", lose)
        head = commit(project)
        sh(project, "git", "switch", "-q", "main")
        change_record(project, "faces", "accuracy", lambda record: record.update({"int8.auc": 0.5}))
        commit(project, "main moves on")
        sh(project, "git", "switch", "-q", "change")
        text = review()
        assert "`int8 auc`" not in text
        assert "0.5000" not in text
        assert review(head=head) == text
        sh(project, "git", "switch", "-q", "main")
        assert review(base="main", head="change") == text

    def test_a_bound_that_was_lowered_is_said(self, project):
        change_params(project, lambda models: models["road"]["validate"]["gates"].update(retained=0.9))
        text = review()
        assert "| `road` | `int8 retained` | pass | 1.000 [0.999, 1.000] | 0.9 (**was 0.99**) |" in text
        assert "**3 gates are judged by another bound than at the base.**" in text
        assert "was judged by another bound" not in text

    def test_parameters_that_nothing_was_run_with_are_said(self, project):
        change_params(project, lambda models: models["road"]["int8"].update(method="minmax"))
        changed = commit(project)
        said = "**Not run since their parameters changed: `validate@road`.** The figures are those of the earlier parameters"
        assert said in review()
        assert said in review(head=changed)
        sh(project, "dvc", "repro", "-q")
        assert "Not run since" not in review()

    def test_a_bound_that_no_one_has_judged_by_is_said(self, project):
        change_params(project, lambda models: models["road"]["validate"]["gates"].update(retained=1.0))
        assert "`road int8.gate.retained` was judged by another bound than params.yaml has now: `dvc repro`" in review()

    def test_a_gate_that_is_gone_is_said(self, project):
        change_record(project, "road", "accuracy", lambda record: record.pop("qat.gate.retained"))
        assert "| `road` | `qat retained` | **gone** (was pass) | - | was 0.99 |" in review()

    def test_small_changes_are_counted_and_many_are_cut(self, project):
        def shift(record: dict) -> None:
            record["int8.miou"] += 1e-6
            record |= {f"int8.iou.class{place}": place / 1000 for place in range(1, 400)}

        change_record(project, "road", "accuracy", shift)
        text = part(review(), "Figures")
        assert "None of the figures that are read first changed." in text
        assert "1 figure changed by less than 5e-05." in text
        assert "... and 399 more figures that changed" in text
        assert f"... and 249 more: `dvc metrics diff {sh(project, 'git', 'rev-parse', 'main')[:9]}`" in text
        assert text.count("int8 iou.class") == 150

    def test_a_project_in_a_subfolder(self, made, tmp_path, monkeypatch):
        outer = tmp_path / "outer"
        shutil.copytree(made, outer / "vision models", ignore=shutil.ignore_patterns(".git", ".dvc"))
        sh(outer, "git", "init", "-q")
        inner = outer / "vision models"
        sh(inner, "dvc", "init", "-q", "--subdir")
        commit(outer)
        monkeypatch.chdir(inner)
        (outer / "other.txt").write_text("no evidence of this project")
        assert "This is the first commit" in review("HEAD")
        change_record(inner, "road", "accuracy", lose)
        assert "| `road` | `int8 miou` | 0.8241 | 0.7519 | -0.0722 |" in review("HEAD")


class TestHistory:
    def test_an_unchanged_tree(self, project):
        commit_twice(project)
        text = review("HEAD")
        assert text.splitlines()[2] == "## Octavo: all 23 gates pass"
        assert "Nothing changed in this folder since" in text
        assert re.findall(r"^### (.*)$", text, re.M) == ["Gates", "Latency", "Worst picture"]

    def test_the_first_commit(self, project):
        assert "This is the first commit: nothing lies before it." in review("HEAD")
        assert "This is the first commit, and there is no `origin/main`: there is nothing to compare with." in review("origin/main")
        assert "This is the first commit, and there is no `HEAD~1`" in review("HEAD~1")

    def test_no_commit(self, project):
        shutil.rmtree(project / ".git")
        assert "This folder is in no git repository" in review()
        sh(project, "git", "init", "-q")
        text = review()
        assert "The git repository has no commit yet: there is nothing to compare with." in text
        assert "all 23 gates pass" in text

    def test_a_base_that_is_not_here(self, project):
        commit_twice(project)
        assert "The base `release` is not in this clone: `git fetch` brings it. Nothing is compared." in review("release")
        sh(project, "git", "remote", "add", "origin", str(project))
        assert "`origin/main` is not in this clone: `git fetch origin main` brings it." in review("origin/main")
        # No option of git, whatever it looks like.
        assert "The base `--help` is not in this clone" in review("--help")

    def test_a_shallow_clone(self, project, tmp_path, monkeypatch):
        commit_twice(project)
        sh(project, "git", "switch", "-q", "main")
        (project / "more.txt").write_text("on main")
        commit(project)
        clone = tmp_path / "clone"
        sh(tmp_path, "git", "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{project}", str(clone))
        monkeypatch.chdir(clone)
        sh(clone, "git", "switch", "-q", "change")
        text = review("origin/main")
        assert (
            "cut off before the merge base with `origin/main`: `git fetch --unshallow` brings the rest. Nothing is compared."
            in text
        )
        assert "### Figures" not in text
        assert "`git fetch --unshallow` brings it" in review("other")
        sh(clone, "git", "fetch", "-q", "--unshallow")
        assert "the merge base with `origin/main`" in review("origin/main")

    def test_no_common_commit(self, project):
        sh(project, "git", "switch", "-q", "--orphan", "alone")
        (project / "other.txt").write_text("other")
        commit(project)
        sh(project, "git", "switch", "-q", "change")
        assert "have no commit in common: there is nothing to compare with." in review("alone")

    def test_a_dirty_and_a_detached_tree(self, project):
        head = commit_twice(project)
        sh(project, "git", "switch", "-q", "--detach")
        assert "detached" not in review(), "the commit is on a branch: nothing can get lost"
        change_record(project, "road", "accuracy", lose)
        (project / "new.txt").write_text("untracked")
        text = review()
        assert "The working tree has 2 files that are in no commit: the figures are the working tree's." in text
        assert "| `road` | `int8 miou` | 0.8241 | 0.7519 | -0.0722 |" in text
        commit(project, "on no branch")
        assert "HEAD is detached at" in review()
        assert "detached" not in review(head=head)

    def test_a_head_that_is_none(self, project):
        with pytest.raises(ParamsError, match="--head nowhere: no such commit"):
            comment("main", "nowhere")


def commit_twice(project: Path) -> str:
    for name in ("one.txt", "two.txt"):
        (project / name).write_text(name)
        head = commit(project, name)
    return head


class TestWhatCannotBeRead:
    def test_dvc_is_not_initialised(self, project):
        shutil.rmtree(project / ".dvc")
        change_record(project, "road", "accuracy", lose)
        text = review()
        assert "DVC is not initialised here (`dvc init`): figures and parameters are not compared." in text
        assert "**fail**, **was pass**" in text
        assert "### Figures" not in text

    def test_a_new_model_and_a_removed_one(self, project):
        def swap(models: dict) -> None:
            models["lanes"] = models.pop("road")

        change_params(project, swap)
        shutil.copytree(project / "metrics/road", project / "metrics/lanes")
        shutil.rmtree(project / "metrics/road")
        text = review()
        assert "New: `lanes`, without figures at the base to compare with." in text
        assert "Removed: `road`." in text
        assert "Figures of the new model `lanes`" in text
        assert "| `fp32` | 2.55 | 100% | 0.824 |" in text
        assert re.search(r"`models.lanes` is new: \d+ keys.", text)
        assert re.search(r"`models.road` is removed: \d+ keys.", text)
        assert "`road` |" not in part(text, "Gates")

    def test_a_model_that_nobody_has_measured(self, project):
        change_params(project, lambda models: models.update(lanes=models["road"]))
        text = review()
        assert text.splitlines()[2] == "## Octavo: all 23 gates pass, 1 model without figures"
        assert "`lanes` has no figures in the head: `dvc repro` measures it." in text
        # Said once, not again of each record that DVC looks for.
        assert "cannot be read" not in text
        assert "`lanes` has no latency in the head" in text
        # Nor has it at the base: params.yaml alone is new.
        assert "New: `lanes`" in text
        commit(project, "lanes")
        (project / "README").write_text("something else")
        assert "New: `lanes`" not in review("HEAD")

    def test_no_metrics_at_the_base(self, made, tmp_path, monkeypatch):
        folder = tmp_path / "bare"
        folder.mkdir()
        sh(folder, "git", "init", "-q")
        (folder / "README").write_text("before")
        commit(folder)
        shutil.copytree(made, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
        monkeypatch.chdir(folder)
        text = review("HEAD")
        assert "There is no `params.yaml` in the base" in text
        assert "New: `road`, without figures at the base to compare with." in text
        assert "all 23 gates pass" in text

    @pytest.mark.parametrize("broken", ["base", "head"])
    def test_broken_json(self, project, broken):
        path = project / "metrics/road/accuracy.json"
        good = path.read_text()
        path.write_text("<<<<<<< ours\n" + good)
        bad = commit(project, "merged badly")
        path.write_text(good)
        commit(project, "mended")
        text = review(bad) if broken == "base" else review("main", bad)
        assert f"`metrics/road/accuracy.json` of the {broken} is not readable JSON" in text
        assert "`faces` |" in part(text, "Gates")

    def test_records_that_are_none(self, project):
        (project / "metrics/road/accuracy.json").write_text("[1, 2]")
        (project / "metrics/faces/latency.json").write_text(
            '{"host.id": 5, "fp32.cpu.t1.b1.median_ms": "slow", "x.median_ms": null}'
        )
        text = review()
        assert "`metrics/road/accuracy.json` of the head holds no record" in text
        assert "`faces` has no latency in the head" in text

    def test_what_is_not_a_number_is_shown(self, project):
        change_record(
            project, "road", "accuracy", lambda record: record.update({"int8.miou": float("nan"), "int8.retained": float("nan")})
        )
        text = review()
        assert "| `road` | `int8 miou` | 0.8241 | nan | +nan |" in text
        assert "`road int8.gate.retained` was judged by another bound" in text

    def test_broken_params(self, project):
        (project / "params.yaml").write_text("models: {road: [}")
        bad = commit(project)
        text = review()
        assert "`params.yaml` of the head is not readable YAML" in text
        assert "| `road` | `int8 retained` | pass | 1.000 [0.999, 1.000] | - |" in text
        sh(project, "git", "checkout", "-q", "main", "--", "params.yaml")
        commit(project)
        assert "`params.yaml` of the base is not readable YAML" in review(bad)

    @pytest.mark.parametrize("broken", ["stages: [", "stages: {validate: {}}", "<<<<<<< ours"])
    def test_a_broken_pipeline(self, project, broken):
        good = (project / "dvc.yaml").read_text()
        (project / "dvc.yaml").write_text(broken)
        bad = commit(project)
        for text in (review(), review("main", bad)):
            assert re.search(r"`dvc metrics show` fails for the head|DVC does not read the head", text)
            assert "all 23 gates pass" in text
        (project / "dvc.yaml").write_text(good)
        commit(project)
        assert re.search(r"`dvc metrics show` fails for the base|DVC does not read the base", review(bad))

    def test_odd_names_break_nothing(self, project):
        odd = "net|v1 `x` <b>@all</b> [l](u)"
        change_params(project, lambda models: models.update({odd: models["road"]}))
        shutil.copytree(project / "metrics/road", project / "metrics" / odd)
        pipeline = (project / "dvc.yaml").read_text()
        (project / "dvc.yaml").write_text(f"metrics: [{json.dumps(f'metrics/{odd}/accuracy.json')}]\n" + pipeline)
        change_record(project, odd, "accuracy", lose)
        text = review()
        shown = "``net\\|v1 `x` <b>@all</b> [l](u)``"
        assert f"| {shown} | `int8 retained` | **fail** | 0.912 [0.880, 0.940] | 0.99 |" in text
        assert f"New: {shown}, without" in text

    @pytest.mark.slow
    def test_the_comment_stays_below_the_services_limit(self, project):
        names = [f"model_{place:03d}_{'x' * 130}" for place in range(100)]
        change_params(project, lambda models: models.update(dict.fromkeys(names, models["road"])))
        for name in names:
            (project / "metrics" / name).mkdir()
            for kind in ("accuracy", "latency"):
                shutil.copy(project / f"metrics/road/{kind}.json", project / "metrics" / name)
            change_record(project, name, "accuracy", lose)
        text = review()
        assert 20_000 < len(text) < GITHUB
        assert text.splitlines()[2].startswith("## Octavo: 100 gates fail, ")
        assert "20 more (20 fail)" in text
        assert "the comment would be too long" in text


class TestLatency:
    @staticmethod
    def shift(factor: float):
        def change(record: dict) -> None:
            record |= {
                key: round(value * factor, 3) for key, value in record.items() if key.startswith("int8.cpu") and "_ms" in key
            }

        return change

    @staticmethod
    def elsewhere(record: dict) -> None:
        TestLatency.shift(0.5)(record)
        record |= {"host.id": "0123456789ab", "host.cpu": "Other | CPU"}

    def test_the_same_host(self, project):
        change_record(project, "road", "latency", self.shift(2))
        change_record(project, "faces", "latency", self.shift(1.001))
        text = part(review(), "Latency")
        assert "Same host at base and head, 4 medians measured again: 2 slower, 2 within noise." in text
        assert "| `road` | `int8 cpu.t2.b1` | 2.58 [2.44, 3.59] | 5.17 [4.87, 7.17] | +100% | **slower** | 1.95x to 1.95x |" in text
        assert text.index("<details>") < text.index("within noise |")
        assert "elsewhere" not in text

    def test_nothing_was_measured_again(self, project):
        change_record(project, "road", "accuracy", lose)
        assert "Unchanged: 18 medians, measured on the same host." in part(review(), "Latency")

    def test_another_host_is_not_compared(self, project):
        change_record(project, "road", "latency", self.elsewhere)
        text = part(review(), "Latency")
        assert (
            "`road`: the base's figures were measured elsewhere, on host `7ca432ccf350` (`AMD EPYC`); the head's on host "
            "`0123456789ab` (`Other \\| CPU`). The two do not compare." in text
        )
        assert "| `road` | `int8 cpu.t2.b1` | 1.29 [1.22, 1.79] | 1.95x | 2.58, measured elsewhere |" in text
        assert not re.search(r"`road`.*[+-]\d+%", text)
        assert "faster" not in text

    def test_the_ledger_of_the_base_has_this_host(self, project):
        ledger = project / "metrics/hosts/0123456789ab"
        ledger.mkdir(parents=True)
        change_record(project, "road", "latency", self.elsewhere)
        shutil.copy(project / "metrics/road/latency.json", ledger / "road.json")
        sh(project, "git", "checkout", "-q", "main", "--", "metrics/road")
        base = commit(project, "that host was measured before")
        change_record(project, "road", "latency", self.elsewhere)
        change_record(project, "road", "latency", self.shift(0.5))
        text = part(review(base), "Latency")
        assert "| `road` | `int8 cpu.t2.b1` | 1.29 [1.22, 1.79] | 0.65 [0.61, 0.90] | -50% | faster |" in text
        assert "`road`: the base's ledger has this host's figures." in text
        assert "elsewhere" not in text

    def test_hosts_that_are_not_on_file_are_never_the_same(self, project):
        change_record(project, "road", "latency", lambda record: record.pop("host.id"))
        base = commit(project)
        change_record(project, "road", "latency", self.shift(2))
        text = part(review(base), "Latency")
        assert "on a host that is not on file" in text
        assert "slower" not in text

    def test_no_interval_no_answer(self, project):
        change_record(project, "road", "latency", self.shift(2))
        change_record(project, "road", "latency", lambda record: record.pop("int8.cpu.t2.b1.median_low_ms"))
        assert "| `road` | `int8 cpu.t2.b1` | 2.58 [2.44, 3.59] | 5.17 | +100% | no interval |" in part(review(), "Latency")


class TestPicturesAndPlots:
    @pytest.fixture
    def assets(self, tmp_path) -> Assets:
        return Assets(tmp_path / "out/assets", tmp_path / "out")

    def test_the_worst_picture_is_that_of_the_model_that_fails(self, project, assets):
        change_record(project, "faces", "accuracy", lose)
        text = review(assets=assets)
        assert "`metrics/faces/pictures/01_faces.jpg`" in text
        assert "![faces: the worst picture](assets/faces-worst.jpg)" in text
        assert (assets.folder / "faces-worst.jpg").read_bytes() == Path("metrics/faces/pictures/01_faces.jpg").read_bytes()
        assert "`metrics/faces/pictures/01_faces.jpg` (`--assets FOLDER` copies it" in review()

    def test_else_of_the_one_that_keeps_least(self, project, assets):
        change_record(project, "road", "accuracy", doubt)
        assert "road-worst.jpg" in review(assets=assets)

    def test_pictures_of_a_commit_come_from_the_cache(self, project, assets):
        change_record(project, "faces", "accuracy", lose)
        head = commit(project)
        kept = Path("metrics/faces/pictures/01_faces.jpg").read_bytes()
        shutil.rmtree("metrics/faces/pictures")
        for where in (head, None):
            review(head=where, assets=assets)
            assert (assets.folder / "faces-worst.jpg").read_bytes() == kept
            (assets.folder / "faces-worst.jpg").unlink()

    def test_no_cache(self, project, assets):
        change_record(project, "faces", "accuracy", lose)
        commit(project)
        for model in ("road", "faces"):
            shutil.rmtree(f"metrics/{model}/pictures")
        shutil.rmtree(".dvc/cache")
        text = review(assets=assets)
        assert (
            "The pictures of `faces`, `road` are not in DVC's cache here: `dvc pull metrics/faces/pictures metrics/road/pictures`"
            in text
        )
        assert not (assets.folder / "faces-worst.jpg").exists()

    def test_no_pictures(self, project):
        for model in ("road", "faces"):
            shutil.rmtree(f"metrics/{model}/pictures")
            Path(f"metrics/{model}/pictures").mkdir()
        assert "No model has pictures (`validate.pictures`)." in review()

    def test_plots_that_changed_are_drawn(self, project, assets):
        for path in ("metrics/road/tradeoff.csv", "metrics/faces/roc.csv"):
            lines = Path(path).read_text().splitlines()
            Path(path).write_text("\n".join([*lines[:-1], lines[-1].replace("0.8", "0.7").replace("1.0", "0.98")]) + "\n")
        text = part(review(assets=assets), "Plots")
        assert re.findall(r"\((.*?)\)", text) == ["assets/road-tradeoff.png", "assets/faces-roc.png"]
        for name in ("road-tradeoff.png", "faces-roc.png"):
            picture = Image.open(assets.folder / name)
            assert 300 < picture.width < 1200
            # White, lines in grey, and points or curves in colours.
            colours = picture.convert("RGB").getcolors(maxcolors=1 << 20)
            assert sum(max(rgb) - min(rgb) > 60 for _, rgb in colours) > 10
        assert (assets.folder / "road-tradeoff.png").stat().st_size < 200_000
        assert "Changed: `metrics/road/tradeoff.csv`, `metrics/faces/roc.csv` (`--assets FOLDER` draws them" in review()

    def test_where_further_input_sizes_were_measured_their_plot_is_drawn(self, project, assets):
        folder = Path("metrics/road")
        write_resolutions(folder, ("32x32", "48x96"))
        commit(project)
        write_resolutions(folder, ("32x32", "48x96"), worse=0.05)
        text = part(review(base="HEAD", assets=assets), "Plots")
        assert re.findall(r"\((.*?)\)", text) == ["assets/road-resolutions.png"]
        assert "Filled: the head; rings: the base." in text
        both = (assets.folder / "road-resolutions.png").read_bytes()
        # A figure that nobody has measured is no point at zero.
        path = folder / "resolutions.csv"
        path.write_text(path.read_text() + "qat,48x96,,,1.0,\n")
        review(base="HEAD", assets=assets)
        assert (assets.folder / "road-resolutions.png").read_bytes() == both

    def test_points_of_two_hosts_are_never_in_one_plot(self, project, assets):
        path = Path("metrics/road/tradeoff.csv")
        path.write_text(path.read_text().replace("0.8", "0.7"))
        review(assets=assets)
        both = (assets.folder / "road-tradeoff.png").read_bytes()
        change_record(project, "road", "latency", TestLatency.elsewhere)
        text = part(review(assets=assets), "Plots")
        assert "Of `metrics/road/tradeoff.csv` the head's points only" in text
        assert (assets.folder / "road-tradeoff.png").read_bytes() != both

    def test_without_vl_convert(self, project, assets, monkeypatch):
        path = Path("metrics/road/tradeoff.csv")
        path.write_text(path.read_text().replace("0.8", "0.7"))
        monkeypatch.setitem(sys.modules, "vl_convert", None)
        assert "Drawing them takes `pip install octavo[review]`" in review(assets=assets)

    def test_names_of_files_stay_in_their_folder(self, assets):
        assert assets.show("../../x y|z.png", b"1", "a](b") == "![a  b](assets/_.._x_y_z.png)"
        at = Assets(assets.folder, url="https://example.org/a/")
        assert at.show("p.png", b"1", "p") == "![p](https://example.org/a/p.png)"
        packed = Assets(assets.folder, archive="https://example.org/run/1#artifacts")
        assert packed.show("p.png", b"1", "p") == "[p: p.png](https://example.org/run/1#artifacts)"


class TestCommandLine:
    def test_written_and_printed(self, project, capsys):
        change_record(project, "road", "accuracy", lose)
        main(["review", "--base", "main"])
        printed = capsys.readouterr().out
        main(["review", "--base", "main", "-o", "../out/comment.md"])
        assert Path("../out/comment.md").read_text() == printed
        main(["review", "--base", "main", "-o", "../out/c.md", "--assets", "../out/a", "--assets-url", "https://example.org/1"])
        assert "(https://example.org/1/road-worst.jpg)" in Path("../out/c.md").read_text()
        assert Image.open("../out/a/road-worst.jpg").size == (64, 32)

    def test_a_url_without_a_folder(self, project, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["review", "--base", "main", "--assets-url", "https://example.org"])
        assert stopped.value.code == 2
        assert "--assets FOLDER" in capsys.readouterr().err

    def test_nothing_is_checked_out_or_left_behind(self, project):
        change_record(project, "road", "accuracy", lose)
        before = sh(project, "git", "status", "--porcelain", "--ignored")
        review(assets=Assets(project.parent / "a"))
        assert sh(project, "git", "status", "--porcelain", "--ignored") == before


class TestGate:
    def gate(self, capsys, *arguments: str) -> tuple[int, str]:
        code = 0
        try:
            main(["gate", *arguments])
        except SystemExit as stopped:
            code = stopped.code
        said = capsys.readouterr()
        return code, said.out + said.err

    def test_all_pass(self, project, capsys):
        assert self.gate(capsys) == (0, "0 of 23 gates failed\n")

    def test_a_failed_gate_is_named(self, project, capsys):
        change_record(project, "road", "accuracy", lose)
        change_record(project, "faces", "accuracy", doubt)
        failing = "road int8.gate.retained: fail: 0.912 [0.880, 0.940], asked for 0.99\n"
        open_ = "faces int8.gate.retained: inconclusive: 0.980 [0.950, 1.010], asked for 0.99\n"
        assert self.gate(capsys) == (1, f"{failing}{open_}1 of 23 gates failed\n")
        assert self.gate(capsys, "faces") == (0, f"{open_}0 of 11 gates failed\n")
        code, said = self.gate(capsys, "--strict")
        assert code == 1
        assert "2 of 23 gates failed (--strict" in said
        assert self.gate(capsys, "faces", "--strict")[0] == 1

    def test_as_a_process(self, project):
        change_record(project, "road", "accuracy", lose)
        said = sh(project, "octavo", "gate", "road", code=1)
        assert said.splitlines()[0] == "road int8.gate.retained: fail: 0.912 [0.880, 0.940], asked for 0.99"

    def test_missing_metrics(self, project, capsys):
        Path("metrics/road/accuracy.json").unlink()
        code, said = self.gate(capsys)
        assert code == 2
        assert said.startswith("0 of 11 gates failed; not measured: road\n")
        assert "metrics/road/accuracy.json: no such file" in said
        assert "`dvc repro validate@road`" in said
        assert "octavo pull" in said
        # What was measured is judged: a failed gate counts, whatever is missing beside it.
        change_record(project, "faces", "accuracy", lose)
        code, said = self.gate(capsys)
        assert code == 1
        assert said.startswith("faces int8.gate.retained: fail:")
        assert said.endswith("1 of 11 gates failed; not measured: road\n")

    def test_broken_metrics(self, project, capsys):
        Path("metrics/road/accuracy.json").write_text("{")
        code, said = self.gate(capsys)
        assert code == 2
        assert "metrics/road/accuracy.json is not readable JSON" in said
        Path("metrics/road/accuracy.json").write_text("[]")
        assert self.gate(capsys)[0] == 2

    def test_bounds_that_changed_since(self, project, capsys):
        change_params(project, lambda models: models["road"]["validate"]["gates"].update(retained=1.0))
        code, said = self.gate(capsys)
        assert code == 2
        assert "was judged by other bounds than params.yaml has now" in said
        assert "road int8.gate.retained: pass: 0.9996 [0.9990, 1.0001], asked for 1" in said

    def test_an_unknown_model(self, project, capsys):
        code, said = self.gate(capsys, "raod")
        assert code == 2
        assert "did you mean 'road'?" in said

    def test_a_variant_that_was_not_judged(self, project, capsys):
        """As of a record from before the variant was held to gates: what nobody judged does not pass."""
        change_record(
            project, "road", "accuracy", lambda record: [record.pop(key) for key in list(record) if key.startswith("int8.")]
        )
        code, said = self.gate(capsys)
        assert code == 2
        assert (
            "metrics/road/accuracy.json has no gate of int8, which `validate.gates.variants` of params.yaml holds to gates" in said
        )
        assert "`dvc repro validate@road`" in said
        assert "gates failed" not in said

    def test_training_that_was_not_possible_is_not_judged(self, project, capsys):
        change_params(project, lambda models: models["faces"].update(qat={"enabled": True}))
        change_params(project, lambda models: models["faces"]["data"].update(train={"format": "folder", "path": "images"}))
        assert "has no gate of qat" in self.gate(capsys, "faces")[1]
        change_record(project, "faces", "accuracy", lambda record: record.update({"qat.skipped": "cannot be trained in torch"}))
        assert self.gate(capsys, "faces") == (0, "0 of 11 gates failed\n")

    def test_a_model_without_gates(self, project, capsys):
        change_record(project, "road", "accuracy", lambda record: [record.pop(key) for key in list(record) if ".gate." in key])
        change_params(project, lambda models: models["road"]["validate"]["gates"].update(variants=[]))
        code, said = self.gate(capsys)
        assert code == 0
        assert "note: road has no gate" in said


class TestVerdicts:
    def one(self, gate: str, answer: str, latency: dict | None = None, **figures: float):
        record = {f"int8.{key}": value for key, value in figures.items()} | {f"int8.gate.{gate}": answer}
        bounds = Gates(retained=0.99, allow_larger=False, auc_drop=0.01)
        return verdicts(record, bounds, latency)[0]

    def test_rounding_does_not_hide_a_miss(self):
        assert str(self.one("retained", "fail", retained=0.98996, retained_low=0.97, retained_high=0.98999)) == (
            "int8.gate.retained: fail: 0.98996 [0.97000, 0.98999], asked for 0.99"
        )

    def test_bounds_from_above(self):
        missed = self.one("auc_drop", "fail", auc_drop=0.02, auc_drop_low=0.015, auc_drop_high=0.03)
        assert str(missed) == "int8.gate.auc_drop: fail: 0.020 [0.015, 0.030], asked for at most 0.01"
        assert not missed.outdated
        assert self.one("auc_drop", "pass", auc_drop=0.02).outdated
        size = self.one("size", "fail", {"int8.size_ratio": 1.2})
        assert str(size) == "int8.gate.size: fail: size_ratio 1.200, asked for at most 1"
        assert "no larger than FP32" in str(self.one("size", "fail"))

    def test_which_answers_are_outdated(self):
        interval = {"retained": 0.98, "retained_low": 0.97, "retained_high": 0.985}
        assert not self.one("retained", "fail", **interval).outdated
        assert self.one("retained", "inconclusive", **interval).outdated
        assert self.one("retained", "pass", **interval).outdated
        assert not self.one("retained", "no-labels").outdated
        assert not self.one("retained", "pass", retained=0.99).outdated
        assert not self.one("retained", "fail", retained=0.989999).outdated

    def test_an_answer_of_too_little_says_so_and_is_not_outdated(self):
        found = self.one("agreement", "inconclusive", match_f1=1.0)
        assert str(found) == (
            "int8.gate.agreement: inconclusive: match_f1 1.000 of too little to pass by (`warning` in the record), asked for 0.9"
        )
        assert not found.outdated
        assert "of too little" in str(self.one("agreement", "inconclusive"))

    def test_a_drop_of_nothing_has_no_sign(self):
        assert (
            self.one("auc_drop", "pass", auc_drop=-0.00001, auc_drop_low=-0.0001, auc_drop_high=0.0).measured
            == "0.000 [0.000, 0.000]"
        )


class TestMarkdown:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a|b", "`a\\|b`"),
            ("a\\|b", "`a\\|b`"),
            ("a\nb", "`a b`"),
            ("`", "`` ` ``"),
            ("a``b", "```a``b```"),
            ("", "` `"),
            ("x" * 200, "`" + "x" * 117 + "...`"),
        ],
    )
    def test_code(self, text, shown):
        assert code(text) == shown

    def test_what_unfolds_goes_first(self):
        sections = [Section("top", "m" * 50_000), Section("second", "n" * 20_000), Section("third")]
        text = compose(sections)
        assert "m" * 50_000 in text
        assert "n" not in text.replace("third", "").replace("second", "").replace(
            "1 part left out: the comment would be too long for a pull request.", ""
        )
        assert len(text) <= LIMIT
        cut = compose([Section("top"), Section("\n".join(["line"] * 50_000)), Section("end")])
        assert len(cut) <= LIMIT
        assert "cut off here" in cut
        assert cut.startswith("top")
        stream = io.StringIO(cut)
        assert all(len(line) < 200 for line in stream)
