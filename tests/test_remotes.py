"""Two clones and a remote between them: what one made, the other gets without running it. A folder, S3 (moto), SSH (asyncssh)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, project_params, small_network
from repositories import bytes_of, commit, nobodys_settings, octavo, pipeline_repository, ran, s3_server, sh, use_remote
from ssh_server import SshServer, new_key, ssh_server

ALL = {
    f"{stage}@small"
    for stage in ("export", "calibrate", "quantize_fp16", "quantize_int8", "qat", "validate", "benchmark", "report", "package")
}
# Of the branch that somebody works on.
CHANGED = {"similarity": 1.0}


@pytest.fixture(scope="module", autouse=True)
def own_settings(tmp_path_factory) -> Iterator[None]:
    with nobodys_settings(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server() as server:
        yield server


def change(repository: Path) -> None:
    params = yaml.safe_load((repository / "params.yaml").read_text())
    params["models"]["small"]["validate"]["gates"] = CHANGED
    (repository / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A repository whose pipeline ran on `main`, and with other gates on `strict`; `main` is checked out."""
    model = small_network().SerializeToString()
    folder = pipeline_repository(tmp_path_factory.mktemp("remotes") / "a", project_params(), {"small.onnx": model})
    assert ran(sh(folder, "dvc", "repro")) == ALL
    commit(folder, "first run")
    sh(folder, "git", "switch", "-q", "-c", "strict")
    change(folder)
    assert ran(sh(folder, "dvc", "repro")) == {f"{stage}@small" for stage in ("qat", "validate", "report", "package")}
    commit(folder, "other gates")
    sh(folder, "git", "switch", "-q", "main")
    sh(folder, "dvc", "checkout", "-q")
    return folder


@pytest.fixture
def a(made, tmp_path) -> Path:
    """A copy of it that has no remote."""
    shutil.copytree(made, tmp_path / "a", symlinks=True)
    return tmp_path / "a"


def clone(repository: Path, name: str = "b") -> Path:
    """Somebody else's, of what is committed."""
    other = repository.parent / name
    sh(repository.parent, "git", "clone", "-q", "-b", "main", str(repository), str(other))
    return other


def shared(repository: Path, url: str, **settings: str) -> None:
    """Name the remote on both branches."""
    for branch in ("strict", "main"):
        sh(repository, "git", "switch", "-q", branch)
        use_remote(repository, url, **settings)
        commit(repository, "remote")
        sh(repository, "dvc", "checkout", "-q")


def outputs(repository: Path, *folders: str) -> dict[str, bytes]:
    return {
        f"{folder}/{path}": content
        for folder in folders or ("models", "metrics")
        for path, content in bytes_of(repository / folder).items()
    }


def restored(output: str) -> set[str]:
    return {line.split("'")[1] for line in output.splitlines() if "is cached - skipping run" in line}


def exchange(a: Path, env: dict[str, str]) -> None:
    """What a remote is for: A pushes, B pulls and runs nothing; then B changes what A has run, and runs nothing of weight."""
    assert "9 run(s) of the run-cache pushed" in octavo(a, "push", env=env)
    assert "0 file(s) and 0 run(s)" in octavo(a, "push", env=env)
    b = clone(a)
    said = octavo(b, "pull", env=env)
    assert " 0 file(s)" not in said
    assert outputs(b) == outputs(a)
    assert ran(sh(b, "dvc", "repro", env=env)) == set()
    assert sh(b, "git", "status", "--porcelain") == ""
    change(b)
    said = sh(b, "dvc", "repro", env=env)
    # `qat` reads its previous output, and sees that nothing is to be done; `report` joins two files of figures.
    assert ran(said) == {"qat@small", "report@small"}
    assert restored(said) == {"validate@small", "package@small"}
    sh(a, "git", "switch", "-q", "strict")
    sh(a, "dvc", "checkout", "-q")
    assert outputs(b) == outputs(a)
    assert json.loads((b / "metrics/small/accuracy.json").read_text())["int8.gate.similarity"] == "fail"


@pytest.mark.slow
class TestFolder:
    def test_two_clones(self, a):
        shared(a, str(a.parent / "store"))
        exchange(a, {})

    def test_dvc_alone_pushes_no_more_of_the_run_cache_than_its_entries(self, a):
        shared(a, str(a.parent / "store"))
        sh(a, "dvc", "push", "-q", "--run-cache")
        b = clone(a)
        sh(b, "dvc", "pull", "-q", "--run-cache")
        assert len(list((b / ".dvc/cache/runs").rglob("*/*/*"))) == 9
        change(b)
        assert "validate@small" in ran(sh(b, "dvc", "repro", "validate@small"))

    def test_repro_pulls_what_it_needs(self, a):
        """Who wants no more of the run-cache than is used."""
        shared(a, str(a.parent / "store"))
        octavo(a, "push")
        b = clone(a)
        sh(b, "dvc", "pull", "-q", "--run-cache")
        change(b)
        said = sh(b, "dvc", "repro", "--pull")
        assert ran(said) == {"qat@small", "report@small"}
        assert restored(said) >= {"validate@small", "package@small"}

    def test_one_model(self, a):
        shared(a, str(a.parent / "store"))
        octavo(a, "push")
        b = clone(a)
        octavo(b, "pull", "small", "--no-run-cache")
        assert outputs(b) == outputs(a)
        assert not (b / ".dvc/cache/runs").exists()
        octavo(b, "pull", "small")
        assert len(list((b / ".dvc/cache/runs").rglob("*/*/*"))) == 9
        refused = octavo(b, "pull", "smal", code=2)
        assert "no model 'smal'" in refused
        assert "it has: small" in refused

    def test_runs_of_other_code_stay_where_they_are(self, a):
        shared(a, str(a.parent / "store"))
        with open(a / "stages/validate.py", "a") as stream:
            stream.write("# other code\n")
        assert ran(sh(a, "dvc", "repro", "validate@small")) == {"validate@small"}
        # Of validate's three runs the one of this code; package's both, for it does not read validate.py.
        assert "8 run(s) of the run-cache pushed" in octavo(a, "push")

    def test_what_the_remote_lacks(self, a):
        store = a.parent / "store"
        shared(a, str(store))
        octavo(a, "push")
        lock = yaml.safe_load((a / "dvc.lock").read_text())["stages"]
        folder = lock["quantize_fp16@small"]["outs"][0]["md5"]
        (store / "files/md5" / folder[:2] / folder[2:]).unlink()
        b = clone(a)
        refused = octavo_error(b, "pull")
        assert "the remote 'store' lacks files of: models/small/fp16" in refused
        assert "--allow-missing" in refused
        assert not (b / "models").exists(), "the workspace is as it was"
        octavo(b, "pull", "--allow-missing")
        assert not (b / "models/small/fp16").exists()
        assert outputs(b, "models/small/int8") == outputs(a, "models/small/int8")
        # Who has it not either is told so.
        refused = octavo_error(b, "push")
        assert "1 output(s) of dvc.lock are neither in DVC's cache nor in the remote 'store': models/small/fp16" in refused
        octavo(a, "push")
        octavo(b, "pull")
        assert outputs(b) == outputs(a)

    def test_changed_files_are_kept(self, a):
        shared(a, str(a.parent / "store"))
        octavo(a, "push")
        b = clone(a)
        octavo(b, "pull")
        mine = b / "models/small/fp16/model.onnx"
        mine.unlink()
        mine.write_text("years of work")
        refused = octavo_error(b, "pull", "small")
        assert "models/small/fp16" in refused
        assert "--force" in refused
        assert mine.read_text() == "years of work"
        octavo(b, "pull", "small", "--force")
        assert outputs(b) == outputs(a)


def octavo_error(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    """One message and exit code 2; DVC may have written lines before it."""
    said = sh(folder, sys.executable, "-m", "octavo", *arguments, code=2, env=env)
    assert "error: " in said
    assert "to mend: " in said
    assert "Traceback" not in said
    return said


class TestNoRemote:
    def test_none_none_chosen_and_a_wrong_name(self, a):
        for command in ("push", "pull"):
            refused = octavo(a, command, code=2)
            assert "no DVC remote is configured" in refused
            assert "`dvc remote add -d store /mnt/share/octavo`" in refused
        sh(a, "dvc", "remote", "add", "-q", "share", str(a.parent / "store"))
        assert "`dvc remote default share`" in octavo(a, "push", code=2)
        assert "there are: share" in octavo(a, "push", "--remote", "nope", code=2)
        assert "nothing lies in DVC's remote 'share'" in octavo(a, "pull", "--remote", "share", code=2)
        assert "is in no DVC project" in octavo(a.parent, "push", code=2)

    def test_a_model_that_was_never_made(self, a):
        use_remote(a, str(a.parent / "store"))
        params = yaml.safe_load((a / "params.yaml").read_text())
        params["models"]["second"] = params["models"]["small"]
        (a / "params.yaml").write_text(yaml.safe_dump(params))
        assert "dvc.lock has no output of second: it was never made" in octavo(a, "pull", "second", code=2)

    def test_make(self):
        assert "python -m octavo push " in sh(ROOT, "make", "-n", "push")
        assert 'python -m octavo pull "road" --with-deps' in sh(ROOT, "make", "-n", "pull", "MODEL=road", "ARGS=--with-deps")


@pytest.mark.slow
def test_two_clones_and_s3(a, s3):
    endpoint, good = s3
    shared(a, "s3://bucket/clones", endpointurl=endpoint)
    for wrong in ({**good, "AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_DEFAULT_REGION": "us-east-1"}):
        refused = octavo_error(a, "push", env=wrong)
        assert "DVC's remote 'store' refuses: " in refused
        assert "AWS_ACCESS_KEY_ID" in refused
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
    def keyed(self, a, server) -> Path:
        """A project whose remote is that server; where the key lies each user says for all clones."""
        shared(a, server.url)
        sh(a, "dvc", "config", "-q", "--global", "remote.store.url", server.url)
        sh(a, "dvc", "remote", "modify", "--global", "store", "keyfile", str(a.parent / "key"))
        yield a
        sh(a, "dvc", "remote", "remove", "--global", "store")

    def test_two_clones(self, keyed):
        exchange(keyed, {})

    def test_wrong_key_unknown_host_and_wrong_path(self, keyed, server):
        served = bytes_of(keyed.parent / "served")

        def refused(command: str, *parts: str) -> None:
            said = octavo_error(keyed, command)
            for part in parts:
                assert part in said
            assert bytes_of(keyed.parent / "served") == served, "nothing half-written"

        known = Path.home() / ".ssh/known_hosts"
        # Somebody else answers at that address, or nobody has looked yet.
        for line in (f"[127.0.0.1]:{server.port} {new_key(keyed.parent / 'other')}", ""):
            known.write_text(line)
            for command in ("push", "pull"):
                refused(command, "may not be the host that it was", "HostKeyNotVerifiable", "ssh-keyscan")
        known.write_text(server.known_hosts)
        modify = ("dvc", "remote", "modify", "--local", "store")
        sh(keyed, *modify, "keyfile", str(keyed.parent / "other"))
        refused("push", "refuses: PermissionError: Permission denied", "keyfile FILE")
        sh(keyed, *modify, "keyfile", str(keyed.parent / "none"))
        refused("push", str(keyed.parent / "none"))
        sh(keyed, *modify, "keyfile", str(keyed.parent / "key"))
        sh(keyed, *modify, "url", f"{server.url}/../locked/deeper")
        refused("push", "locked")
        refused("pull", "nothing lies in DVC's remote 'store'", "locked")
        sh(keyed, *modify, "url", "ssh://octavo@127.0.0.1:1/store")
        refused("pull", "does not answer", "Connect call failed")

    def test_dvc_alone_takes_any_host(self, keyed, server):
        """Why `octavo push` has its own file system; docs/remotes.md says so. If this fails DVC has learned it: take ours away."""
        Path.home().joinpath(".ssh/known_hosts").write_text(f"[127.0.0.1]:{server.port} {new_key(keyed.parent / 'other')}")
        assert "pushed" in sh(keyed, "dvc", "push", "quantize_fp16@small")
