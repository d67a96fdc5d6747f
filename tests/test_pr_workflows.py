"""The pull-request flow: its files parse, name commands that exist, give no token to a pull request's code; their steps run."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from repositories import sh
from review_project import BIN, change_record, commit, make_project

from octavo.commands import COMMANDS
from octavo.review.markdown import MARKER

pytestmark = pytest.mark.usefixtures("own_settings")

GITHUB = ROOT / ".github/workflows/pr.yaml"
GITLAB = ROOT / ".gitlab-ci.yml"


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("origin") / "project"
    make_project(folder)
    return folder


@pytest.fixture
def clone(origin, tmp_path) -> Path:
    """What a runner checks out: a clone on a branch whose INT8 of `road` fails."""
    folder = tmp_path / "clone"
    sh(tmp_path, "git", "clone", "-q", str(origin), str(folder))
    sh(folder, "git", "switch", "-qc", "change")
    change_record(
        folder,
        "road",
        "accuracy",
        lambda record: record.update(
            {"int8.retained": 0.912, "int8.retained_low": 0.88, "int8.retained_high": 0.94, "int8.gate.retained": "fail"}
        ),
    )
    commit(folder)
    # What `make setup` puts on the PATH.
    tool = tmp_path / "bin/octavo"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m octavo "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return folder


def jobs() -> dict[str, dict]:
    return yaml.safe_load(GITHUB.read_text())["jobs"]


def step(job: str, name: str) -> dict:
    return next(one for one in jobs()[job]["steps"] if one.get("name") == name)


def scripts() -> list[tuple[str, str]]:
    """Every shell script of both files."""
    found = [(f"{job}: {one['name']}", one["run"]) for job, block in jobs().items() for one in block["steps"] if "run" in one]
    return found + [(f"gitlab: {line[:30]}", line) for line in yaml.safe_load(GITLAB.read_text())["review"]["script"]]


def bash(folder: Path, script: str, environment: dict[str, str], code: int = 0) -> str:
    """As a runner does: bash -eo pipefail."""
    path = f"{folder.parent / 'bin'}:{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class TestFiles:
    def test_commands_exist(self):
        text = "\n".join(script for _, script in scripts())
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
        called = re.findall(r"(?:^|[;&|] *|then |else |\) )(octavo|make|dvc|python) +(\S+)(?: +([a-z]+))?", text, re.M)
        assert {tool for tool, *_ in called} == {"octavo", "make", "dvc", "python"}
        for tool, first, _ in called:
            if tool == "octavo":
                assert first in COMMANDS
            elif tool == "make":
                assert first.rstrip(";") in targets
            elif tool == "python":
                assert (ROOT / first).is_file()
        assert {first for tool, first, _ in called if tool == "octavo"} == {"review", "gate", "pull"}
        assert "--allow-missing" in sh(ROOT, "octavo", "pull", "--help")

    def test_options_exist(self):
        text = "\n".join(script for _, script in scripts())
        for options in re.findall(r"octavo review (.*)", text.replace("\\\n", " ")):
            known = sh(ROOT, "octavo", "review", "--help")
            assert all(option in known for option in re.findall(r"--[a-z-]+", options))

    @pytest.mark.parametrize(("name", "script"), scripts())
    def test_shell_parses_and_takes_nothing_from_the_pull_request(self, name, script):
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
        # Expressions are pasted into a script before the shell sees it: a branch's name would be code.
        assert "${{" not in script
        assert not re.search(r"set -x|printenv|\becho\b.*(TOKEN|SECRET|KEY)", script)

    def test_actions_are_pinned_to_a_version(self):
        used = [one["uses"] for block in jobs().values() for one in block["steps"] if "uses" in one]
        assert used
        assert all(re.fullmatch(r"actions/[a-z-]+@v\d+(\.\d+)*|[\w./-]+@[0-9a-f]{40}", one) for one in used)

    def test_the_token_that_writes_meets_no_code_of_the_pull_request(self):
        workflow = yaml.safe_load(GITHUB.read_text())
        # YAML 1.1 reads `on` as true. `pull_request_target` would run with the base's secrets.
        assert workflow[True] == {"pull_request": None}
        assert workflow["permissions"] == {}
        assert workflow["jobs"]["evidence"]["permissions"] == {"contents": "read"}
        assert workflow["jobs"]["comment"]["permissions"] == {"pull-requests": "write"}
        checkout = workflow["jobs"]["evidence"]["steps"][0]
        assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}
        assert not any("checkout" in one.get("uses", "") for one in workflow["jobs"]["comment"]["steps"])
        holders = [name for name, block in workflow["jobs"].items() if "github.token" in json.dumps(block)]
        assert holders == ["comment"]
        # Secrets are in the one step that needs them.
        with_secrets = [
            one["name"] for block in workflow["jobs"].values() for one in block["steps"] if "secrets." in json.dumps(one)
        ]
        assert with_secrets == ["pull"]

    def test_the_gate_comes_last(self):
        assert jobs()["evidence"]["steps"][-1]["run"] == "octavo gate"
        assert "continue-on-error" not in GITHUB.read_text()
        assert yaml.safe_load(GITLAB.read_text())["review"]["script"][-1] == "octavo gate"

    def test_the_comment_is_found_by_its_marker(self):
        assert MARKER in step("comment", "comment")["run"]


class TestSteps:
    def test_review_and_gate_on_github(self, clone, tmp_path):
        summary, output = tmp_path / "summary", tmp_path / "output"
        given = {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output)}
        bash(clone, step("evidence", "review")["run"], given | {"RUN_URL": "https://example.org/run/1#artifacts"})
        text = (clone / "review/comment.md").read_text()
        assert text.startswith(MARKER)
        assert "## Octavo: 1 gate fails, 22 pass" in text
        assert "the merge base with `origin/main`" in text
        assert summary.read_text() == text
        assert output.read_text() == "made=true\n"
        # A clone has no cache.
        assert "`dvc pull metrics/road/pictures" in text
        said = bash(clone, step("evidence", "gate")["run"], {}, code=1)
        assert said.splitlines()[0] == "road int8.gate.retained: fail: 0.912 [0.880, 0.940], asked for 0.99"

    def test_pull(self, clone, origin, tmp_path):
        script = step("evidence", "pull")["run"]
        assert "no DVC remote is configured" in bash(clone, script, {"AWS_ACCESS_KEY_ID": ""})
        store = tmp_path / "store"
        sh(origin, "dvc", "remote", "add", "--local", "-f", "-d", "store", str(store))
        sh(origin, "dvc", "push", "-q", "--run-cache")
        sh(clone, "dvc", "remote", "add", "--local", "-d", "store", str(store))
        for credentials in ("", "key"):
            bash(clone, script, {"AWS_ACCESS_KEY_ID": credentials, "AWS_SECRET_ACCESS_KEY": credentials})
            assert (clone / "metrics/road/pictures/01_road.jpg").is_file()
        shown = {
            "GITHUB_BASE_REF": "main",
            "GITHUB_STEP_SUMMARY": "/dev/null",
            "GITHUB_OUTPUT": "/dev/null",
            "RUN_URL": "https://example.org",
        }
        bash(clone, step("evidence", "review")["run"], shown)
        assert "[road: the worst picture: road-worst.jpg](https://example.org)" in (clone / "review/comment.md").read_text()
        assert (clone / "review/assets/road-worst.jpg").is_file()

    def test_what_is_run(self, clone):
        script = step("evidence", "pipeline")["run"]
        (clone / "Makefile").write_text("repro:\n\t@echo the pipeline runs\n")
        assert "the pipeline runs" in bash(clone, script, {"OCTAVO_REVIEW": ""})
        assert "the pipeline runs" not in bash(clone, script, {"OCTAVO_REVIEW": "metrics"})
        assert "it can be repro or metrics" in bash(clone, script, {"OCTAVO_REVIEW": "all"}, code=2)

    @pytest.mark.parametrize("earlier", ["", "77\n78"])
    def test_one_comment(self, clone, tmp_path, earlier):
        calls = tmp_path / "calls"
        tool = clone.parent / "bin/gh"
        tool.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\ncase "$*" in *--jq*) printf "%s" "$EARLIER" ;; esac\n')
        tool.chmod(0o755)
        bash(clone, step("comment", "comment")["run"], {"GITHUB_REPOSITORY": "o/r", "PULL": "5", "EARLIER": earlier})
        asked, written = calls.read_text().splitlines()
        assert asked.startswith("api --paginate repos/o/r/issues/5/comments --jq ")
        where = "-X PATCH repos/o/r/issues/comments/77" if earlier else "-X POST repos/o/r/issues/5/comments"
        assert written == f"api --silent {where} -F body=@review/comment.md"

    def test_review_and_gate_on_gitlab(self, clone, gitlab):
        shutil_note = clone / ".ci"
        shutil_note.mkdir()
        (shutil_note / "gitlab_note.py").write_text((ROOT / ".ci/gitlab_note.py").read_text())
        script = yaml.safe_load(GITLAB.read_text())["review"]["script"]
        wanted = [line for line in script if line.startswith(("git fetch", "if [ -n", "octavo review", "python"))]
        assert len(wanted) == 4
        given = gitlab.environment | {
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            "CI_PROJECT_URL": "https://example.org/o/r",
            "CI_JOB_ID": "9",
        }
        for number in range(2):
            said = bash(clone, "\n".join(wanted), given)
            assert said.splitlines()[-1] == ("note 200 replaced" if number else "note 200 written")
            assert "hunter2" not in said
        assert gitlab.notes[200].startswith(MARKER)
        assert len(gitlab.notes) == 121, "replaced, not added"
        bash(clone, script[-1], {}, code=1)
        refused = bash(clone, wanted[-1], given | {"REVIEW_TOKEN": "old"}, code=1)
        assert "HTTP Error 401" in refused
        assert "REVIEW_TOKEN needs scope `api`" in refused
        assert "REVIEW_TOKEN is not set" in bash(clone, wanted[-1], given | {"REVIEW_TOKEN": ""})


class GitLab:
    """The two calls of GitLab's notes API that are used, with its paging, over HTTP."""

    def __init__(self) -> None:
        # More than one page of others' notes, one of which quotes ours.
        self.notes = {number: f"note {number}" for number in range(119)} | {119: f"> {MARKER}\nquoted"}
        gitlab = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                content = json.loads(self.rfile.read(length)) if length else None
                if self.headers["PRIVATE-TOKEN"] != "hunter2":
                    return self.answer(401, {})
                path, _, query = self.path.partition("?")
                base = "/api/v4/projects/3/merge_requests/5/notes"
                if self.command == "GET" and path == base:
                    found = dict(pair.split("=") for pair in query.split("&"))
                    start, size = (int(found["page"]) - 1) * int(found["per_page"]), int(found["per_page"])
                    listed = [{"id": number, "body": body, "system": False} for number, body in sorted(gitlab.notes.items())]
                    return self.answer(200, listed[start : start + size])
                if self.command == "POST" and path == base:
                    gitlab.notes[200] = content["body"]
                    return self.answer(201, {"id": 200})
                number = int(path.removeprefix(f"{base}/"))
                gitlab.notes[number] = content["body"]
                return self.answer(200, {"id": number})

            do_GET = do_POST = do_PUT = handle_any  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}/api/v4"
        return {"CI_API_V4_URL": url, "CI_PROJECT_ID": "3", "CI_MERGE_REQUEST_IID": "5", "REVIEW_TOKEN": "hunter2"}


@pytest.fixture
def gitlab() -> Iterator[GitLab]:
    served = GitLab()
    yield served
    served.server.shutdown()
