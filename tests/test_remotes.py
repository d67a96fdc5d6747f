"""Two clones and a remote between them: what one made, the other gets without running it. A folder, S3 (moto), SSH (asyncssh)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, project_params, small_network
from repositories import bytes_of, commit, octavo, pipeline_repository, ran, sh, use_remote
from ssh_server import SshServer, new_key, ssh_server

from octavo.deploy.registry import transfer
from octavo.deploy.registry.transfer import pull, push
from octavo.errors import RegistryError

pytestmark = pytest.mark.usefixtures("own_settings")

ALL = {
    f"{stage}@small"
    for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate", "benchmark", "report", "package")
}
# Gates that fail.
CHANGED = {"similarity": 1.0}


def change(repository: Path) -> None:
    params = yaml.safe_load((repository / "params.yaml").read_text())
    params["models"]["small"]["validate"]["gates"] = CHANGED
    (repository / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A repository whose pipeline ran, and then with other gates, which were not committed; what that made lies in `strict`."""
    model = small_network().SerializeToString()
    folder = pipeline_repository(tmp_path_factory.mktemp("remotes") / "a", project_params(), {"small.onnx": model})
    assert ran(sh(folder, "dvc", "repro")) == ALL
    commit(folder, "first run")
    change(folder)
    assert ran(sh(folder, "dvc", "repro")) == {f"{stage}@small" for stage in ("qat", "validate", "report", "package")}
    for name in ("models", "metrics"):
        shutil.copytree(folder / name, folder.parent / "strict" / name)
    sh(folder, "git", "checkout", "-q", ".")
    sh(folder, "dvc", "checkout", "-q")
    return folder


@pytest.fixture
def a(made, tmp_path, monkeypatch) -> Path:
    """A copy of it that has no remote, as the working directory."""
    shutil.copytree(made, tmp_path / "a", symlinks=True)
    shutil.copytree(made.parent / "strict", tmp_path / "strict")
    monkeypatch.chdir(tmp_path / "a")
    return tmp_path / "a"


def clone(repository: Path) -> Path:
    """Somebody else's, of what is committed."""
    other = repository.parent / "b"
    sh(repository.parent, "git", "clone", "-q", str(repository), str(other))
    return other


def shared(repository: Path, url: str, **settings: str) -> None:
    use_remote(repository, url, **settings)
    commit(repository, "remote")


def outputs(repository: Path, *folders: str) -> dict[str, bytes]:
    return {
        f"{folder}/{path}": content
        for folder in folders or ("models", "metrics")
        for path, content in bytes_of(repository / folder).items()
    }


def entries(repository: Path) -> list[Path]:
    return list((repository / ".dvc/cache/runs").glob("*/*/*"))


def in_store(store: Path, digest: str) -> Path:
    return store / "files/md5" / digest[:2] / digest[2:]


def restored(output: str) -> set[str]:
    return {line.split("'")[1] for line in output.splitlines() if "is cached - skipping run" in line}


def refused(call: Callable[[], object], *parts: str) -> None:
    with pytest.raises(RegistryError) as error:
        call()
    for part in parts:
        assert part in str(error.value)
    assert error.value.mend, "a way out is named"


def exchange(a: Path, env: dict[str, str]) -> None:
    """What a remote is for: A pushes, B pulls and runs nothing; then B changes what A has run, and runs nothing of weight."""
    assert "9 run(s) of the run-cache pushed" in octavo(a, "push", env=env)
    assert "0 file(s) and 0 run(s)" in octavo(a, "push", env=env)
    b = clone(a)
    octavo(b, "pull", env=env)
    assert outputs(b) == outputs(a)
    assert ran(sh(b, "dvc", "repro", env=env)) == set()
    assert sh(b, "git", "status", "--porcelain") == ""
    change(b)
    said = sh(b, "dvc", "repro", env=env)
    # `qat` reads its previous output, and sees that nothing is to be done; `report` joins two files of figures.
    assert ran(said) == {"qat@small", "report@small"}
    assert restored(said) == {"validate@small", "package@small"}
    assert outputs(b) == outputs(a.parent / "strict")
    assert json.loads((b / "metrics/small/accuracy.json").read_text())["int8.gate.similarity"] == "fail"


@pytest.mark.slow
class TestFolder:
    def test_two_clones(self, a):
        shared(a, str(a.parent / "store"))
        exchange(a, {})

    def test_dvc_alone_pushes_no_more_of_the_run_cache_than_its_entries(self, a):
        """Why `octavo push` is no alias of `dvc push --run-cache`. If this fails DVC has learned it: take run_cache.py away."""
        shared(a, str(a.parent / "store"))
        sh(a, "dvc", "push", "-q", "--run-cache")
        b = clone(a)
        sh(b, "dvc", "pull", "-q", "--run-cache")
        assert len(entries(b)) == 9
        change(b)
        sh(b, "dvc", "repro", "-q", "machine")
        assert ran(sh(b, "dvc", "repro", "--dry", "--pull", "-s", "validate@small")) == {"validate@small"}
        # Who wants no more of the run-cache than is used takes the entries by DVC, and a run's outputs when it comes to it.
        moved = push()
        assert moved.runs == 0
        assert moved.files > 0, "what the entries name"
        said = sh(b, "dvc", "repro", "--pull")
        assert ran(said) == {"qat@small", "report@small"}
        assert restored(said) >= {"validate@small", "package@small"}

    def test_one_model_and_what_is_asked_wrongly(self, a):
        shared(a, str(a.parent / "store"))
        push()
        b = clone(a)
        assert "it has: small" in octavo(b, "pull", "smal", code=2)
        with chdir(b):
            pull("small", run_cache=False)
            assert outputs(b) == outputs(a)
            assert entries(b) == []
            assert pull("small").files == 0
            assert len(entries(b)) == 9
            mine = Path("models/small/fp16/model.onnx")
            mine.unlink()
            mine.write_text("years of work")
            refused(lambda: pull("small"), "models/small/fp16", "--force")
            assert mine.read_text() == "years of work"
            pull("small", force=True)
        assert outputs(b) == outputs(a)

    def test_runs_of_other_code_stay_where_they_are(self, a):
        with open(a / "stages/package.py", "a") as stream:
            stream.write("# other code\n")
        assert ran(sh(a, "dvc", "repro", "package@small")) == {"package@small"}
        use_remote(a, str(a.parent / "store"))
        assert len(entries(a)) == 10
        assert push().runs == 8, "package's two of before are not of this code"

    def test_what_the_remote_lacks(self, a):
        store = a.parent / "store"
        shared(a, str(store))
        push()
        lock = yaml.safe_load((a / "dvc.lock").read_text())["stages"]
        in_store(store, lock["quantize_fp16@small"]["outs"][0]["md5"]).unlink()
        b = clone(a)
        with chdir(b):
            refused(pull, "lacks 1 output(s), or files of them: models/small/fp16", "--allow-missing")
            assert not Path("models").exists(), "the workspace is as it was"
            pull(allow_missing=True)
            assert not Path("models/small/fp16").exists()
            assert outputs(b, "models/small/int8") == outputs(a, "models/small/int8")
            # Who has it not either is told so.
            refused(push, "1 output(s) of dvc.lock are neither in DVC's cache nor in the remote 'store': models/small/fp16")
        push()
        in_store(store, sh(a, "md5sum", "models/small/int8/model.onnx").split()[0]).unlink()
        shutil.rmtree(b / ".dvc/cache")
        with chdir(b):
            # The package has a copy of that file.
            refused(lambda: pull("small", run_cache=False), "lacks 2 output(s), or files of them", "models/small/int8")


@pytest.mark.slow
class TestNoRemote:
    def test_none_none_chosen_and_a_wrong_name(self, a):
        assert "`dvc remote add -d store /mnt/share/octavo`" in octavo(a, "push", code=2)
        refused(pull, "no DVC remote is configured")
        sh(a, "dvc", "remote", "add", "-q", "share", str(a.parent / "store"))
        refused(push, "no DVC remote is the default", "`dvc remote default share`")
        refused(lambda: push("nope"), "no DVC remote is named 'nope'", "there are: share")
        refused(lambda: pull(remote="share"), "nothing lies in DVC's remote 'share'")
        with chdir(a.parent):
            refused(push, "is in no DVC project")

    def test_a_model_that_was_never_made(self, a):
        use_remote(a, str(a.parent / "store"))
        params = yaml.safe_load((a / "params.yaml").read_text())
        params["models"]["second"] = params["models"]["small"]
        (a / "params.yaml").write_text(yaml.safe_dump(params))
        refused(lambda: pull("second"), "dvc.lock has no output of second: it was never made")


def test_what_a_model_is_made_from(tmp_path):
    """Sets that `dvc add` keeps among it, and nothing of other models."""
    from dvc.repo import Repo

    digest = "0" * 32
    stages = {
        "export": ("data/mine", "models/m/fp32"),
        "calibrate": ("models/m/fp32", "models/m/calibration"),
        "other": ("data/mine", "models/n"),
    }
    made = {name: {"cmd": name, "deps": [dep], "outs": [out]} for name, (dep, out) in stages.items()}
    ran = {
        name: {"cmd": name, "deps": [{"path": dep, "md5": digest}], "outs": [{"path": out, "md5": digest}]}
        for name, (dep, out) in stages.items()
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.dvc").write_text(json.dumps({"outs": [{"path": "mine", "md5": digest}]}))
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": made}))
    (tmp_path / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": ran}))
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        assert [transfer._path(out) for out in transfer._outputs(repo, "m")] == ["models/m/fp32", "models/m/calibration"]
        whole = [transfer._path(out) for out in transfer._outputs(repo, "m", with_deps=True)]
        assert sorted(whole) == ["data/mine", "models/m/calibration", "models/m/fp32"]


@pytest.mark.slow
def test_sets_that_no_model_is_made_from_are_not_missed(tmp_path, own_settings, monkeypatch):
    """The demo's, of which a clone has no more than their stages and hashes."""
    stages = {
        "prepare": {"cmd": "mkdir -p data/of_demo && echo 1 > data/of_demo/a", "outs": ["data/of_demo"]},
        "mine": {"cmd": "mkdir -p data/mine && echo 2 > data/mine/b", "outs": ["data/mine"]},
        "export": {"cmd": "mkdir -p models/m && cp data/mine/b models/m/c", "deps": ["data/mine"], "outs": ["models/m"]},
    }
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    monkeypatch.chdir(tmp_path)
    sh(tmp_path, "git", "init", "-q")
    sh(tmp_path, "dvc", "init", "-q")
    sh(tmp_path, "dvc", "repro", "-q")
    lock = yaml.safe_load((tmp_path / "dvc.lock").read_text())["stages"]
    use_remote(tmp_path, str(tmp_path / "store"))

    def lose(name: str, folder: str) -> None:
        shutil.rmtree(folder)
        in_store(tmp_path / ".dvc/cache", lock[name]["outs"][0]["md5"]).unlink()

    lose("prepare", "data/of_demo")

    moved = push()
    assert (moved.files > 0, moved.left) == (True, ("data/of_demo",))
    assert "nowhere, and no model is made from them: data/of_demo" in octavo(tmp_path, "push")
    shutil.rmtree(".dvc/cache")
    assert pull().left == ("data/of_demo",)
    in_store(tmp_path / "store", lock["mine"]["outs"][0]["md5"]).unlink()
    lose("mine", "data/mine")
    refused(push, "1 output(s) of dvc.lock are neither in DVC's cache nor in the remote 'store': data/mine")


def test_make():
    assert "python -m octavo push " in sh(ROOT, "make", "-n", "push")
    assert 'python -m octavo pull "road" --with-deps' in sh(ROOT, "make", "-n", "pull", "MODEL=road", "ARGS=--with-deps")


@pytest.mark.slow
def test_two_clones_and_s3(a, s3):
    endpoint, good = s3
    shared(a, "s3://bucket/clones", endpointurl=endpoint)
    for wrong in ({**good, "AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_DEFAULT_REGION": "us-east-1"}):
        said = octavo(a, "push", code=2, env=wrong)
        assert "DVC's remote 'store' refuses: " in said
        assert "AWS_ACCESS_KEY_ID" in said
    exchange(a, good)


@pytest.mark.slow
class TestSsh:
    @pytest.fixture
    def server(self, tmp_path) -> Iterator[SshServer]:
        with ssh_server(tmp_path / "served", new_key(tmp_path / "key")) as server:
            known = Path.home() / ".ssh/known_hosts"
            known.parent.mkdir(exist_ok=True)
            known.write_text(server.known_hosts)
            yield server

    @pytest.fixture
    def keyed(self, a, server) -> Iterator[Path]:
        """A project whose remote is that server; where the key lies each user says once, for all clones."""
        shared(a, server.url)
        settings = Path(sh(a, "python", "-c", "from dvc.dirs import global_config_dir as d; print(d())").strip(), "config")
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(f"['remote \"store\"']\n    url = {server.url}\n    keyfile = {a.parent / 'key'}\n")
        yield a
        settings.unlink()

    def test_two_clones(self, keyed):
        exchange(keyed, {})

    def test_wrong_key_unknown_host_and_wrong_path(self, keyed, server):
        served = bytes_of(keyed.parent / "served")

        def fails(call: Callable[[], object], *parts: str) -> None:
            refused(call, *parts)
            assert bytes_of(keyed.parent / "served") == served, "nothing half-written"

        def set_locally(**settings: object) -> None:
            lines = [f"    {key} = {value}" for key, value in settings.items()]
            Path(".dvc/config.local").write_text("\n".join(["['remote \"store\"']", *lines]) + "\n")

        known = Path.home() / ".ssh/known_hosts"
        # Somebody else answers at that address, or nobody has looked yet.
        for line in (f"[127.0.0.1]:{server.port} {new_key(keyed.parent / 'other')}", ""):
            known.write_text(line)
            for call in (push, pull):
                fails(call, "may not be the host that it was", "HostKeyNotVerifiable", "ssh-keyscan")
        known.write_text(server.known_hosts)
        set_locally(keyfile=keyed.parent / "other")
        fails(push, "refuses: PermissionError: Permission denied", "keyfile FILE")
        set_locally(keyfile=keyed.parent / "none")
        fails(push, str(keyed.parent / "none"))
        set_locally(url="ssh://octavo@127.0.0.1:1/store")
        fails(pull, "does not answer", "Connect call failed")
        set_locally(url=server.url.replace("/store", "/locked/store"))
        fails(push, "locked")
        fails(pull, "nothing lies in DVC's remote 'store'", "locked")

    def test_dvc_alone_takes_any_host(self, keyed, server):
        """Why ours is another file system; docs/remotes.md says so. If this fails DVC has learned it: take ssh.py away."""
        Path.home().joinpath(".ssh/known_hosts").write_text(f"[127.0.0.1]:{server.port} {new_key(keyed.parent / 'other')}")
        assert "pushed" in sh(keyed, "dvc", "push", "quantize_fp16@small")
