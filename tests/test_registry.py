"""Releases and their consumers, with real git, DVC and GTO: a local remote and S3 (moto, which checks signatures and policies)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import boto3
import onnx
import pytest
import yaml
from conftest import CLASSES, ROOT, project_params, small_network, write_images
from forked import run_stage
from repositories import bytes_of, commit, octavo, sh, use_remote
from scmrepo.exceptions import SCMError
from scmrepo.git import Git

from octavo.commands import main
from octavo.deploy.artifact import artifacts
from octavo.deploy.registry.fetch import fetch
from octavo.deploy.registry.release import plan, tag
from octavo.errors import OctavoError, ParamsError, RegistryError, SourceError
from octavo.layout import artifact_name
from octavo.params import load

pytestmark = pytest.mark.usefixtures("own_settings")
STAGES = ("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark")
TAGS = ["small@{0}", "small-fp32@{0}", "small-fp16@{0}", "small-int8@{0}"]
ENTRIES = {"small": "models/small/package"} | {f"small-{name}": f"models/small/package/{name}" for name in ("fp32", "fp16", "int8")}

# What a service does, on a machine with neither torch nor dvc.
CONSUMER = """
import json, sys
sys.modules.update(dict.fromkeys(["torch", "torchvision", "dvc", "gto", "scmrepo"]))
import octavo.deploy.registry.fetch, octavo.deploy.registry.release
from octavo.deploy.loader import load
model = load(sys.argv[1], measure=False)
said = [one.scores.tolist() + one.best(2) for one in model.predict(sys.argv[2:])]
print(json.dumps([model.name, model.variant, said]))
"""


def tags(folder: Path) -> list[str]:
    return sh(folder, "git", "tag").split()


def said_by(folder: Path, model: Path) -> list:
    """What a consumer's process, in a folder outside, gets of the model: name, variant, predictions."""
    images = sorted(map(str, (IMAGES[0] / "0").glob("*.png")))
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER, str(model), *images], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# The folder of validation images of the module's project.
IMAGES: list[Path] = []


@pytest.fixture(scope="module")
def expected(made) -> dict[str, list]:
    """What the producer's own files say."""
    package = made / "project/models/small/package"
    return {"package": said_by(made, package), "int8": said_by(made, package / "int8")}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with `project` (made by the stages, packaged by DVC, committed) and its remote `store`."""
    place = tmp_path_factory.mktemp("registry")
    folder = place / "project"
    folder.mkdir()
    onnx.save(small_network(), folder / "small.onnx")
    write_images(place / "images/calibration", 8, seed=1)
    for label in range(CLASSES):
        write_images(place / f"images/validation/{label}", 3, seed=10 + label)
    IMAGES.append(place / "images/validation")
    params = project_params()
    for purpose in params["models"]["small"]["data"].values():
        purpose["path"] = f"../{purpose['path']}"
    (folder / "params.yaml").write_text(yaml.safe_dump(params | {"allow_outside": ["../images"]}))
    (folder / ".gitignore").write_text("/models/*/package\n__pycache__\n/metrics/*/pictures\n")
    # The project's own stage; what it packages lies in git here, so that nothing else has to run.
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["package"]
    stage["do"]["deps"] = [dep for dep in stage["do"]["deps"] if "${key}" in dep and not dep.endswith("/qat")]
    entries = {name: {"path": path, "type": "model"} for name, path in ENTRIES.items()}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"package": stage}, "artifacts": entries}))
    shutil.copytree(ROOT / "stages", folder / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in STAGES:
            done = run_stage(name, "--model", "small")
            assert done.returncode == 0, done.stderr
    sh(folder, "git", "init", "-q")
    sh(folder, "dvc", "init", "-q")
    use_remote(folder, str(place / "store"))
    sh(folder, "dvc", "repro", "-q")
    sh(folder, "dvc", "push", "-q")
    commit(folder, "first")
    return place


@pytest.fixture
def project(made, tmp_path, monkeypatch) -> Path:
    """A copy of it with a remote of its own, as the working directory; nothing is released."""
    for name in ("project", "store"):
        shutil.copytree(made / name, tmp_path / name, symlinks=True)
    (tmp_path / "images").symlink_to(made / "images")
    folder = tmp_path / "project"
    config = folder / ".dvc/config"
    config.write_text(config.read_text().replace(str(made), str(tmp_path)))
    commit(folder, "remote")
    monkeypatch.chdir(folder)
    return folder


def refuse(
    *parts: str, model: str = "small", version: str = "v1.0.0", kind: type[OctavoError] = RegistryError, **options: str
) -> None:
    before = tags(Path())
    with pytest.raises(kind) as refused:
        plan(model, version, **options)
    for part in parts:
        assert part in str(refused.value)
    assert refused.value.mend, "a way out is named"
    assert tags(Path()) == before


def repackage(folder: Path) -> None:
    sh(folder, "dvc", "repro", "-q", "package@small")
    sh(folder, "dvc", "push", "-q")
    commit(folder)


def stored(folder: Path, path: str) -> str:
    """The MD5 of a file of the package."""
    return sh(folder, "md5sum", f"models/small/package/{path}").split()[0]


def in_store(project: Path, path: str) -> Path:
    digest = stored(project, path)
    place = project.parent / "store/files/md5" / digest[:2] / digest[2:]
    place.chmod(0o644)
    return place


def test_dvc_yaml_has_an_entry_for_every_deployable_variant():
    from gto.constants import check_string_is_valid

    entries = yaml.safe_load((ROOT / "dvc.yaml").read_text())["artifacts"]
    wanted = {}
    for name, spec in load(ROOT / "params.yaml").models.items():
        variants = [one for one in spec.validation.gates.variants if one != "qat" or spec.qat.enabled]
        wanted[artifact_name(name)] = f"models/{name}/package"
        wanted |= {artifact_name(name, variant): f"models/{name}/package/{variant}" for variant in ["fp32", *variants]}
    assert {name: entry["path"] for name, entry in entries.items()} == wanted
    assert len(wanted) == 21
    for name, entry in entries.items():
        assert check_string_is_valid(name), name
        assert re.fullmatch(r"[a-z0-9-]+", name), "older GTO takes no underscore"
        assert entry["type"] == "model"
        assert entry["desc"]


class TestRelease:
    def test_tags_are_annotated_and_carry_the_figures(self, project):
        release = plan("small", "v1.0.0")
        assert tags(project) == []
        tag(release)
        assert sorted(tags(project)) == sorted(name.format("v1.0.0") for name in TAGS)
        head = sh(project, "git", "rev-parse", "HEAD").strip()
        for name in release.tags:
            assert sh(project, "git", "cat-file", "-t", name).strip() == "tag"
            assert sh(project, "git", "rev-parse", f"{name}^{{commit}}").strip() == head
        message = sh(project, "git", "tag", "-l", "--format=%(contents)", "small@v1.0.0")
        accuracy = json.loads(Path("metrics/small/accuracy.json").read_text())
        assert message.splitlines()[0] == "small v1.0.0"
        assert f"int8: top1 {accuracy['int8.top1']:.3f}; kept {accuracy['int8.retained']:.3f} [" in message
        assert re.search(r"int8: .* MB; .* ms, .*x FP32 \(cpu, 1 threads, host \w+\); gates: pass", message)
        assert len(message.strip().splitlines()) == 5
        assert len(sh(project, "git", "tag", "-l", "--format=%(contents)", "small-fp16@v1.0.0").strip().splitlines()) == 3

    def test_versions(self, project):
        tag(plan("small", "v1.0.0"))
        refuse("v1.0.0 exists already", "small-int8@v1.0.0")
        refuse("this commit is small v1.0.0 already", version="v1.1.0")
        Path("note.txt").write_text("new")
        commit(project)
        tag(plan("small", "v2.0.0"))
        Path("note.txt").write_text("newer")
        commit(project)
        (note,) = plan("small", "v1.0.1").notes
        assert "v1.0.1 is below v2.0.0" in note
        assert plan("small", "v2.1.0-rc.1").notes == ()

    def test_all_tags_or_none(self, project):
        release = plan("small", "v1.0.0")
        # A folder stands where git would write the last tag.
        sh(project, "git", "tag", f"{release.tags[-1]}/in-the-way")
        with pytest.raises(RegistryError, match="no tag was made"):
            tag(release)
        assert tags(project) == [f"{release.tags[-1]}/in-the-way"]

    def test_tags_that_git_keeps_are_named_and_the_others_go(self, project, monkeypatch):
        release = plan("small", "v1.0.0")
        sh(project, "git", "tag", f"{release.tags[-1]}/in-the-way")
        kept, remove = release.tags[0], Git.remove_ref

        def refusing(scm, ref, *rest, **named):
            if ref.endswith(kept):
                raise SCMError("locked")
            return remove(scm, ref, *rest, **named)

        monkeypatch.setattr(Git, "remove_ref", refusing)
        with pytest.raises(RegistryError, match="nor could what was made be removed") as caught:
            tag(release)
        assert f"git tag -d {kept}`" in caught.value.mend
        assert len(release.tags) > 2
        assert tags(project) == sorted([kept, f"{release.tags[-1]}/in-the-way"])

    @pytest.mark.parametrize(
        ("version", "near"),
        [("1.0.0", "v1.0.0"), ("v1.2", "v1.2.0"), ("V3", "v3.0.0"), ("latest", "v1.1.0-rc.1"), ("v01.0.0", "v1.0.0")],
    )
    def test_a_version_that_is_none(self, project, version, near):
        refuse(f"{version!r} is no version", near, version=version, kind=ParamsError)

    def test_an_unknown_model(self, project):
        refuse("no model 'smal'", "did you mean 'small'", model="smal", kind=ParamsError)

    def test_a_tree_that_is_not_clean(self, project):
        Path("network.py").write_text("")
        refuse("untracked network.py")
        with open("params.yaml", "a") as stream:
            stream.write("# changed\n")
        refuse("2 file(s)", "changed params.yaml", "untracked network.py")
        Path("network.py").unlink()
        sh(project, "git", "checkout", "-q", "params.yaml")
        assert plan("small", "v1.0.0")

    def test_a_commit_that_would_get_lost(self, project):
        sh(project, "git", "checkout", "-q", "--detach")
        assert plan("small", "v1.0.0"), "as in CI, which checks out a commit of a branch"
        sh(project, "git", "commit", "-q", "--allow-empty", "-m", "on no branch")
        refuse("HEAD is detached", "git switch -c")

    def test_no_commit_and_no_repository(self, project):
        shutil.rmtree(".git")
        with pytest.raises(RegistryError, match="git init"):
            plan("small", "v1.0.0")
        sh(project, "git", "init", "-q")
        refuse("no commit yet")

    def test_a_project_in_a_subfolder_of_its_repository(self, project, monkeypatch):
        shutil.rmtree(".git")
        sh(project.parent, "git", "init", "-q")
        Path("../.gitignore").write_text("/store\n")
        sh(project, "dvc", "config", "core.no_scm", "false")
        commit(project.parent)
        refuse("subfolder")

    def test_a_package_that_is_not_what_the_commit_makes(self, project):
        figures = json.loads(Path("metrics/small/latency.json").read_text()) | {"host.cores": 77}
        Path("metrics/small/latency.json").write_text(json.dumps(figures))
        commit(project)
        refuse("metrics/small/latency.json is modified", "dvc repro package@small")

    def test_a_package_that_is_not_here(self, project):
        shutil.rmtree("models/small/package")
        refuse("not in models/small", "dvc pull package@small")

    def test_a_package_that_is_not_in_the_cache(self, project):
        shutil.rmtree(".dvc/cache")
        refuse("not in DVC's cache", "dvc commit package@small")

    def test_earlier_stages_need_not_be_here(self, project):
        """A release asks for no images: what earlier stages read may lie elsewhere, as for `dvc repro --allow-missing`."""
        pipeline = yaml.safe_load(Path("dvc.yaml").read_text())
        pipeline["stages"]["earlier"] = {
            "cmd": "cp big.bin models/small/early.bin",
            "deps": ["big.bin"],
            "outs": ["models/small/early.bin"],
        }
        pipeline["stages"]["package"]["do"]["deps"].append("models/${key}/early.bin")
        Path("dvc.yaml").write_text(yaml.safe_dump(pipeline, sort_keys=False))
        Path("big.bin").write_text("images")
        Path(".gitignore").write_text(Path(".gitignore").read_text() + "/big.bin\n/models/small/early.bin\n")
        repackage(project)
        Path("big.bin").unlink()
        Path("models/small/early.bin").unlink()
        assert plan("small", "v1.0.0")
        Path("big.bin").write_text("other images")
        refuse("earlier: big.bin is modified")

    def test_a_package_that_is_not_in_the_remote(self, project):
        in_store(project, "int8/model.onnx").unlink()
        # The list of the folder's files is still there, and so DVC says that all is.
        assert "in sync" in sh(project, "dvc", "status", "--cloud")
        refuse("1 file(s) are not in DVC's remote 'store': models/small/package/int8/model.onnx", "dvc push package@small")
        shutil.rmtree(project.parent / "store")
        refuse("8 file(s) are not")

    def test_an_object_that_was_cut_off(self, project):
        place = in_store(project, "int8/model.onnx")
        place.write_bytes(place.read_bytes()[:100])
        refuse("int8/model.onnx has another size", str(place))

    def test_remotes(self, project, monkeypatch):
        refuse("RemoteNotFoundError", "nope", remote="nope")
        monkeypatch.setitem(sys.modules, "dvc_ssh", None)
        monkeypatch.delitem(sys.modules, "octavo.deploy.registry.ssh", raising=False)
        sh(project, "dvc", "remote", "add", "--local", "far", "ssh://127.0.0.1/dvc")
        refuse("'far' needs a package that is not installed", "dvc-ssh", remote="far")
        sh(project, "dvc", "remote", "remove", "--local", "far")
        url = str(project.parent / "store")
        sh(project, "dvc", "remote", "remove", "store")
        commit(project)
        (note,) = plan("small", "v1.0.0").notes
        assert "no DVC remote is configured" in note
        sh(project, "dvc", "remote", "add", "--local", "mine", url)
        (note,) = plan("small", "v1.0.0", remote="mine").notes
        assert "'mine' is not in .dvc/config" in note

    def test_a_failed_gate(self, project):
        params = yaml.safe_load(Path("params.yaml").read_text())
        params["models"]["small"]["validate"]["gates"] = {"similarity": 1.0}
        Path("params.yaml").write_text(yaml.safe_dump(params))
        assert run_stage("validate", "--model", "small").returncode == 0
        repackage(project)
        cosine = json.loads(Path("metrics/small/accuracy.json").read_text())["int8.cosine_mean"]
        refuse(f"int8.gate.similarity: fail: cosine_mean {cosine:.3f}, asked for 1")

    def test_gates_that_did_not_tell_are_said(self, project):
        record = json.loads(Path("metrics/small/accuracy.json").read_text())
        record |= {
            "int8.gate.retained": "inconclusive",
            "int8.retained": 0.97,
            "int8.retained_low": 0.9,
            "fp16.gate.retained": "no-labels",
        }
        Path("metrics/small/accuracy.json").write_text(json.dumps(record))
        repackage(project)
        release = plan("small", "v1.0.0")
        assert any("int8.gate.retained: inconclusive: 0.970 [0.900, " in note for note in release.notes)
        assert any("fp16.gate.retained: no-labels" in note for note in release.notes)
        assert "gates: retained inconclusive" in release.artifacts["small-int8"]

    def test_entries_of_dvc_yaml(self, project):
        pipeline = yaml.safe_load(Path("dvc.yaml").read_text())
        entries = pipeline["artifacts"]
        del entries["small-int8"]
        entries["small-fp16"]["path"] = "models/small/fp16"
        entries["small-qat"] = {"path": "models/small/package/qat", "type": "model"}
        Path("dvc.yaml").write_text(yaml.safe_dump(pipeline))
        commit(project)
        refuse(
            "small-int8: {path: models/small/package/int8, type: model}",
            "small-fp16: {path: models/small/package/fp16, type: model}",
        )
        entries |= {name: {"path": ENTRIES[name], "type": "model"} for name in ("small-int8", "small-fp16")}
        Path("dvc.yaml").write_text(yaml.safe_dump(pipeline))
        commit(project)
        (note,) = plan("small", "v1.0.0").notes
        assert note.startswith("small-qat is in dvc.yaml and not in the package")


def publish(project: Path, version: str = "v1.0.0", env: dict[str, str] | None = None) -> str:
    """Release from the command line and push the tags as it says; the URL that consumers take."""
    origin = project.parent / "origin.git"
    if not origin.exists():
        sh(project, "git", "init", "-q", "--bare", str(origin))
        sh(project, "git", "remote", "add", "origin", str(origin))
        sh(project, "git", "push", "-q", "origin", "main")
    said = octavo(project, "release", "small", version, env=env)
    push = re.search(r"^publish:  (git push origin .*)$", said, re.M)
    assert f"octavo fetch {origin} small-int8@{version} -o FOLDER" in said
    assert f"dvc artifacts get {origin} small-int8 --rev {version} -o FOLDER" in said
    assert sh(project, "git", "ls-remote", "--tags", "origin") == "" or version != "v1.0.0", "tags are pushed by who releases"
    sh(project, *push[1].split())
    return str(origin)


class TestCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["release", "", ""], "MODEL is missing"),
            (["release", "small"], "VERSION is missing"),
            (["release", "small", "v1.0.0"], "untracked new.py"),
            (["fetch", ".", "small", "-o", "x", "--remote-config", "a"], "'a' is no KEY=VALUE"),
            (["fetch", ".", "small", "-o", "x", "--config", "none"], "--config none: no such file"),
            (["fetch", ".", "small", "-o", "x"], "nothing was released there"),
        ],
    )
    def test_a_mistake_is_one_message(self, project, arguments, told, capsys):
        Path("new.py").write_text("")
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2
        said = capsys.readouterr()
        assert said.err.startswith("error: ")
        assert told in said.err
        assert said.out == ""

    def test_a_dry_run_makes_no_tag(self, project, capsys):
        main(["release", "small", "v1.0.0", "--dry-run"])
        said = capsys.readouterr().out
        assert (
            f"would be tagged at {sh(project, 'git', 'rev-parse', '--short', 'HEAD').strip()}: {TAGS[0].format('v1.0.0')}" in said
        )
        assert "git push" not in said
        assert tags(project) == []

    def test_make_release(self):
        said = sh(ROOT, "make", "-n", "release", "MODEL=lite0", "VERSION=v1.0.0")
        assert 'python -m octavo release "lite0" "v1.0.0"' in said


@pytest.mark.slow
def test_a_consumer_outside_gets_what_was_released(project, expected, tmp_path, monkeypatch):
    url = publish(project)
    assert expected["int8"][:2] == ["small", "int8"]
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    # From here on the remote is all there is.
    shutil.rmtree(project)
    sh(outside, "dvc", "artifacts", "get", url, "small-int8", "--rev", "v1.0.0", "-o", "int8")
    assert said_by(outside, Path("int8")) == expected["int8"]
    sh(outside, "dvc", "get", url, "models/small/package", "--rev", "small@v1.0.0", "-o", "package")
    assert said_by(outside, Path("package")) == expected["package"]
    told = octavo(outside, "fetch", url, "small-int8", "-o", "fetched")
    assert "fetched: small-int8 v1.0.0 (int8)" in told
    assert bytes_of(outside / "fetched") == bytes_of(outside / "int8")
    assert sorted(path.name for path in outside.iterdir()) == ["fetched", "int8", "package"]


class TestFetch:
    @pytest.fixture
    def url(self, project) -> str:
        tag(plan("small", "v1.0.0"))
        return str(project)

    def fails(self, url: str, name: str, *parts: str, kind: type[OctavoError] = RegistryError, **options: object) -> None:
        with pytest.raises(kind) as failed:
            fetch(url, name, "../out", **options)
        for part in parts:
            assert part in str(failed.value)
        assert not [path for path in Path("..").iterdir() if "out" in path.name], "nothing half-written"

    def test_names_and_versions(self, url, project):
        self.fails(url, "smal", "has no version of 'smal'", "did you mean 'small'")
        self.fails(url, "small", "v3.0.0 was not released", "versions: v1.0.0", version="v3.0.0")
        self.fails(str(project.parent / "nowhere"), "small", "cannot be read as a git repository")
        Path("note.txt").write_text("new")
        commit(project)
        tag(plan("small", "v1.1.0"))
        assert fetch(url, "small-int8", "../newest").version == "v1.1.0"
        assert fetch(url, "small", "../older", version="v1.0.0").variants == ("fp32", "fp16", "int8")
        sh(project, "gto", "deprecate", "small-int8", "v1.1.0")
        self.fails(url, "small-int8", "v1.1.0 was withdrawn", version="v1.1.0")
        assert fetch(url, "small-int8", "../newest", force=True).version == "v1.0.0"

    def test_a_folder_that_is_there(self, url):
        Path("../mine").mkdir()
        Path("../mine/thesis.txt").write_text("years of work")
        with pytest.raises(RegistryError, match="exists"):
            fetch(url, "small", "../mine")
        with pytest.raises(RegistryError, match="holds more than a model"):
            fetch(url, "small", "../mine", force=True)
        assert Path("../mine/thesis.txt").read_text() == "years of work"

    def test_a_damaged_object(self, url, project):
        for path in ("int8/model.onnx", "int8/manifest.json"):
            # The consumer's cache is empty, the producer's out of reach.
            shutil.rmtree(".dvc/cache", ignore_errors=True)
            place = in_store(project, path)
            whole = place.read_bytes()
            place.write_bytes(whole[:900] + b"0" + whole[901:])
            self.fails(url, "small-int8", f"models/small/package/{path} is damaged in the remote")
            self.fails(url, "small", f"models/small/package/{path} is damaged in the remote")
            assert fetch(url, "small-fp16", f"../fp16-{path.split('.')[-1]}")
            place.write_bytes(whole)

    def test_a_missing_object(self, url, project):
        shutil.rmtree(".dvc/cache")
        in_store(project, "int8/model.onnx").unlink()
        self.fails(url, "small", "lacks a file", "models/small/package/int8/model.onnx")

    def test_a_failure_leaves_the_model_that_was_there(self, url, project):
        assert fetch(url, "small", "../kept")
        shutil.rmtree(".dvc/cache")
        in_store(project, "int8/model.onnx").unlink()
        with pytest.raises(RegistryError, match="lacks a file"):
            fetch(url, "small", "../kept", force=True)
        assert list(artifacts("../kept")) == ["fp32", "fp16", "int8"]

    def test_a_tag_that_octavo_did_not_make(self, url, project):
        sh(project, "gto", "register", "elsewhere", "--version", "v1.0.0")
        self.fails(url, "elsewhere", "dvc.yaml at that commit has no such entry")

    def test_an_artifact_that_is_no_package(self, url, project):
        pipeline = yaml.safe_load(Path("dvc.yaml").read_text())
        pipeline["artifacts"]["figures"] = {"path": "metrics/small"}
        Path("dvc.yaml").write_text(yaml.safe_dump(pipeline))
        commit(project)
        sh(project, "gto", "register", "figures", "--version", "v1.0.0")
        self.fails(url, "figures", "holds no model", kind=SourceError)


@pytest.fixture(scope="module")
def released(made, s3, tmp_path_factory) -> tuple[str, Path]:
    """The URL of a project that released to S3, and the producer's package."""
    endpoint, good = s3
    folder = tmp_path_factory.mktemp("s3") / "project"
    shutil.copytree(made / "project", folder, symlinks=True)
    use_remote(folder, "s3://bucket/dvc", endpointurl=endpoint)
    commit(folder, "s3")
    with pytest.raises(AssertionError, match=r"not in DVC's remote 'store': models/small/package"):
        octavo(folder, "release", "small", "v1.0.0", env=good)
    sh(folder, "dvc", "push", "-q", env=good)
    refused = octavo(folder, "release", "small", "v1.0.0", env={**good, "AWS_SECRET_ACCESS_KEY": "wrong"}, code=2)
    assert "DVC's remote 'store' refuses: " in refused
    assert "403" in refused
    assert "AWS_ACCESS_KEY_ID" in refused
    assert "credentials" in octavo(folder, "release", "small", "v1.0.0", code=2)
    assert tags(folder) == []
    return publish(folder, env=good), folder / "models/small/package"


@pytest.fixture
def outside(tmp_path) -> Path:
    return tmp_path


WRONG = [
    pytest.param({"AWS_SECRET_ACCESS_KEY": "wrong"}, "403", id="wrong secret"),
    pytest.param({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN000000000"}, "403", id="unknown key"),
    pytest.param({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials", id="no credentials"),
]


@pytest.mark.slow
class TestS3:
    def test_credentials_in_the_environment(self, released, expected, s3, outside):
        url, package = released
        sh(outside, "dvc", "artifacts", "get", url, "small-int8", "--rev", "v1.0.0", "-o", "int8", env=s3[1])
        assert said_by(outside, Path("int8")) == expected["int8"]
        sh(outside, "dvc", "get", url, "models/small/package", "--rev", "small@v1.0.0", "-o", "package", env=s3[1])
        assert bytes_of(outside / "package") == bytes_of(package)
        octavo(outside, "fetch", url, "small-int8@v1.0.0", "-o", "fetched", env=s3[1])
        assert bytes_of(outside / "fetched") == bytes_of(package / "int8")

    def test_credentials_and_endpoint_in_a_file(self, released, s3, outside):
        """What docs/registry.md tells a consumer to write: the repository need not know the endpoint by its right name."""
        endpoint, good = s3
        settings = {
            "endpointurl": endpoint,
            "access_key_id": good["AWS_ACCESS_KEY_ID"],
            "secret_access_key": good["AWS_SECRET_ACCESS_KEY"],
            "region": "us-east-1",
        }
        lines = [f"    {key} = {value}" for key, value in settings.items()]
        (outside / "s3.config").write_text("\n".join(["['remote \"store\"']", "    url = s3://bucket/dvc", *lines]) + "\n")
        url, _ = released
        sh(outside, "dvc", "artifacts", "get", url, "small-int8", "--rev", "v1.0.0", "-o", "int8", "--config", "s3.config")
        octavo(outside, "fetch", url, "small-int8", "-o", "fetched", "--config", "s3.config")
        given = [f"{key}={value}" for key, value in settings.items()]
        octavo(outside, "fetch", url, "small-int8", "-o", "settings", "--remote", "store", "--remote-config", *given)
        for name in ("fetched", "settings"):
            assert (outside / name / "model.onnx").read_bytes() == (outside / "int8/model.onnx").read_bytes()

    @pytest.mark.parametrize(("changes", "told"), WRONG)
    def test_wrong_credentials(self, released, s3, outside, changes, told):
        url, _ = released
        environment = {name: value for name, value in {**s3[1], **changes}.items() if value}
        said = octavo(outside, "fetch", url, "small-int8", "-o", "fetched", env=environment, code=2)
        assert "refuses" in said
        assert told in said
        assert "AWS_ACCESS_KEY_ID" in said
        assert list(outside.iterdir()) == [], "nothing half-written"

    def test_dvc_itself_with_wrong_credentials(self, released, s3, outside):
        url, _ = released
        said = sh(
            outside,
            *("dvc", "artifacts", "get", url, "small-int8", "--rev", "v1.0.0", "-o", "int8"),
            code=1,
            env={**s3[1], "AWS_SECRET_ACCESS_KEY": "wrong"},
        )
        assert "403" in said
        assert not list(outside.rglob("*.*")), "no file"

    def test_damaged_and_missing_objects(self, released, s3, outside):
        endpoint, good = s3
        url, package = released
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=good["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=good["AWS_SECRET_ACCESS_KEY"],
        )
        digest = sh(outside, "md5sum", str(package / "int8/model.onnx")).split()[0]
        place = {"Bucket": "bucket", "Key": f"dvc/files/md5/{digest[:2]}/{digest[2:]}"}
        whole = client.get_object(**place)["Body"].read()
        get = ("dvc", "artifacts", "get", url, "small-int8", "--rev", "v1.0.0", "-o")

        client.put_object(**place, Body=whole[:1000] + bytes([whole[1000] ^ 255]) + whole[1001:])
        said = octavo(outside, "fetch", url, "small-int8", "-o", "fetched", env=good, code=2)
        assert "models/small/package/int8/model.onnx is damaged in the remote" in said
        assert list(outside.iterdir()) == []
        # DVC gives it out, `verify` or not; the loader does not open it.
        sh(outside, *get, "int8", "--remote-config", "verify=true", env=good)
        with pytest.raises(AssertionError, match=r"int8/model\.onnx is damaged, or not the file that its manifest describes"):
            said_by(outside, Path("int8"))
        # `dvc pull` with it does look.
        clone = outside / "clone"
        sh(outside, "git", "clone", "-q", url, str(clone))
        sh(clone, "dvc", "remote", "modify", "--local", "store", "verify", "true")
        sh(clone, "dvc", "pull", "-q", "package@small", code=1, env=good)
        assert not (clone / "models/small/package").exists()

        client.delete_object(**place)
        said = octavo(outside, "fetch", url, "small", "-o", "fetched", env=good, code=2)
        assert "lacks a file" in said
        assert "int8/model.onnx" in said
        assert not (outside / "fetched").exists()
        assert "No storage files available: 'models/small/package/int8/model.onnx'" in sh(outside, *get, "part", code=1, env=good)
        # Half a model, with its manifest or without: docs/registry.md says so of DVC.
        assert (outside / "part").is_dir()
        with pytest.raises(AssertionError, match=r"part/model\.onnx: no such file|part holds no model"):
            said_by(outside, Path("part"))
        client.put_object(**place, Body=whole)
