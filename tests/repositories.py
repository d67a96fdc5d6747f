"""Real git and DVC repositories, whoever's machine it is: settings, commands, remotes, and a whole pipeline on a small network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
import requests
import yaml
from conftest import CLASSES, ROOT, write_images
from forked import run_dvc, run_octavo
from moto.server import ThreadedMotoServer

__all__ = ["bytes_of", "commit", "nobodys_settings", "octavo", "pipeline_repository", "ran", "s3_server", "sh", "use_remote"]

BIN = Path(sys.executable).parent
_FORKED = {"dvc": run_dvc, "octavo": run_octavo}


@contextmanager
def nobodys_settings(home: Path) -> Iterator[None]:
    """Nobody's git, DVC, AWS or SSH settings, and nothing sent; `home` is empty and becomes the home folder."""
    (home / ".gitconfig").write_text(
        '[user]\nname = t\nemail = t@example.org\n[init]\ndefaultBranch = main\n[protocol "file"]\nallow = always\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in [name for name in os.environ if name.startswith(("AWS_", "GIT_", "DVC_"))]:
            patch.delenv(name)
        patch.setenv("DVC_NO_ANALYTICS", "1")
        for name in ("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR", "DVC_SITE_CACHE_DIR"):
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
        patch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
        patch.setenv("AWS_CONFIG_FILE", str(home / "none"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "none"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        patch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def sh(folder: Path, *command: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(env or {})}
    if command[0] in _FORKED:
        done = _FORKED[command[0]](folder, command[1:], environment)
    else:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def commit(folder: Path, message: str = "next") -> None:
    sh(folder, "git", "add", "-A")
    sh(folder, "git", "commit", "-qm", message)


def octavo(folder: Path, *arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    said = sh(folder, "octavo", *arguments, code=code, env=env)
    if code == 2:
        assert said.startswith("error: ")
        assert "Traceback" not in said
    return said


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def use_remote(folder: Path, url: str, **settings: str) -> None:
    sh(folder, "dvc", "remote", "add", "-q", "-d", "-f", "store", url)
    for key, value in settings.items():
        sh(folder, "dvc", "remote", "modify", "store", key, value)


@contextmanager
def s3_server() -> Iterator[tuple[str, dict[str, str]]]:
    """A server that checks signatures and policies: its URL, and the environment of somebody who may use `bucket`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    # Its memory is the process's: a module that had a server before left its user and buckets there.
    requests.post(f"{url}/moto-api/reset", timeout=10).raise_for_status()
    root = {"endpoint_url": url, "region_name": "us-east-1", "aws_access_key_id": "root", "aws_secret_access_key": "root"}
    boto3.client("s3", **root).create_bucket(Bucket="bucket")
    iam = boto3.client("iam", **root)
    iam.create_user(UserName="user")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    iam.put_user_policy(
        UserName="user", PolicyName="s3", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    )
    key = iam.create_access_key(UserName="user")["AccessKey"]
    before = requests.post(f"{url}/moto-api/reset-auth", data=b"0", timeout=10).json()["PREVIOUS_INITIAL_NO_AUTH_ACTION_COUNT"]
    yield (
        url,
        {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    )
    requests.post(f"{url}/moto-api/reset-auth", data=str(before).encode(), timeout=10)
    server.stop()


def ran(output: str) -> set[str]:
    """Stages that `dvc repro` ran, by what it said, but for those that run at each call (`always_changed`)."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    always = {name for name, stage in stages.items() if stage.get("always_changed")}
    return {line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")} - always


def pipeline_repository(folder: Path, params: Mapping, files: Mapping[str, bytes]) -> Path:
    """A repository with this project's own stages, code and settings, one model, its images and these files; nothing has run."""
    folder.mkdir(parents=True)
    for name in ("octavo", "stages"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in (".dvcignore", ".gitignore"):
        shutil.copyfile(ROOT / name, folder / name)
    # The demo data has its own stages; this repository brings its images along.
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    del pipeline["stages"]["prepare"]
    (folder / "dvc.yaml").write_text(yaml.safe_dump(pipeline))
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    write_images(folder / "images/calibration", 8, seed=1)
    for label in range(CLASSES):
        write_images(folder / f"images/validation/{label}", 3, seed=10 + label)
    sh(folder, "git", "init", "-q")
    sh(folder, "dvc", "init", "-q")
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")
    shutil.copytree(ROOT / ".dvc/plots", folder / ".dvc/plots")
    commit(folder, "start")
    return folder
