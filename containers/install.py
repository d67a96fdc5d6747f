"""Install a lock into a virtual environment: what the builder stages of Dockerfile.cpu and Dockerfile.gpu run.

    install.py VENV LOCK [--without LOCK...] [--slim] [--image NAME --target TARGET]

Only the standard library and uv are needed. `--without` leaves out what another layer of the image has. Everything is installed
with hashes and, since a lock is complete, without resolving anything. `--slim` deletes what no program of the image opens
(`SUPERFLUOUS`).

`TORCH_INDEX` in the environment (a build argument) is a package index to take torch and torchvision from, at the lock's versions:
builds for the CPU alone are a fraction of the size of PyPI's, which bring CUDA along. The lock's hashes are those of PyPI's files,
so these two packages are taken on that index's word, unhashed. CUDA's packages are then left out, unless the lock has
onnxruntime-gpu, which needs them itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

FROM_TORCH_INDEX = ("torch", "torchvision")
IDENTITY = Path("/usr/local/share/octavo/image.json")
CACHE = Path("/root/.cache/uv")

# What `--slim` deletes, as patterns below site-packages.
SUPERFLUOUS = (
    # Tests, and what only compilers and type checkers read. sympy/testing, numpy/testing are imported, tests are not.
    *("**/tests", "onnx/backend/test", "**/*.pyi", "**/*.pxd", "**/*.pyx", "**/*.h", "**/*.hpp", "**/*.cc", "**/*.a", "**/*.f90"),
    # ONNX Runtime once more, as a library for C: Python's module has all of it inside.
    "onnxruntime/capi/libonnxruntime.so.*",
    # What only their own tests, or compilers, open.
    *("numpy/_core/_simd.*", "numpy/_core/*_tests.*"),
    *("onnxruntime/tools", "onnxruntime/transformers/models"),
    # octavo imports scikit-learn's metrics and scipy's sparse and optimize, scikit-learn more of scipy, onnx-ir sympy's symbols.
    *(
        f"sklearn/{name}"
        for name in ("_loss", "cluster", "compose", "covariance", "cross_decomposition", "datasets", "decomposition")
    ),
    *(f"sklearn/{name}" for name in ("ensemble", "experimental", "feature_extraction", "feature_selection", "gaussian_process")),
    *(
        f"sklearn/{name}"
        for name in ("impute", "inspection", "linear_model", "manifold", "mixture", "model_selection", "neighbors")
    ),
    *(f"sklearn/{name}" for name in ("neural_network", "semi_supervised", "svm", "tree")),
    *(f"scipy/{name}" for name in ("cluster", "datasets", "differentiate", "fftpack", "io", "misc", "odr", "signal")),
    *(f"sympy/{name}" for name in ("categories", "crypto", "diffgeom", "holonomic", "liealgebras", "physics", "stats", "vector")),
    *("joblib/test", "numpy/distutils", "pydantic/v1"),
    # What reads AVIF, which is none of `octavo.images.decode.FORMATS`.
    *("PIL/_avif.*", "pillow.libs/libavif-*"),
    # rich knows them by name, and imports those that somebody colours code with.
    "pygments/lexers/[a-z]*.py",
)


def pins(lock: str) -> list[tuple[str, str]]:
    """(package, its lines) of a lock's text, in order; a package has several where Python versions differ."""
    blocks: list[tuple[str, str]] = []
    for line in lock.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            name, text = blocks[-1]
            blocks[-1] = (name, f"{text}\n{line}")
        else:
            blocks.append((line.partition("==")[0], line))
    return blocks


def is_cuda(name: str) -> bool:
    """What torch needs for a GPU, and only for that."""
    return name.startswith(("nvidia-", "cuda-")) or name == "triton"


def parted(lock: str, without: set[str], torch_index: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What of a lock is installed with its hashes, and the pins (`torch==2.14.0`) that the other index is asked for."""
    blocks = [(name, text) for name, text in pins(lock) if name not in without]
    if not torch_index:
        return blocks, []
    cuda = any(name == "onnxruntime-gpu" for name, _ in pins(lock))
    hashed = [(name, text) for name, text in blocks if name not in FROM_TORCH_INDEX and (cuda or not is_cuda(name))]
    # A pin's markers and hashes follow its first word.
    return hashed, [text.split()[0] for name, text in blocks if name in FROM_TORCH_INDEX]


def main() -> None:
    """Make the environment if it is not there, install, make slim, sign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--without", type=Path, action="append", default=[])
    parser.add_argument("--slim", action="store_true")
    parser.add_argument("--image", help="with --target: also write who the image is to " + str(IDENTITY))
    parser.add_argument("--target")
    chosen = parser.parse_args()
    index = os.environ.get("TORCH_INDEX", "")
    lock = chosen.lock.read_text(encoding="utf-8")
    without = {name for path in chosen.without for name, _ in pins(path.read_text(encoding="utf-8"))}
    hashed, unhashed = parted(lock, without, index)

    if not chosen.venv.exists():
        # Without pip: nothing is installed in an image once it is built.
        run(sys.executable, "-m", "venv", "--without-pip", str(chosen.venv))
    # In a layer of its own the cache would be lost: it is used only where the machine that builds lends one (a volume).
    options = ["--no-deps", "--python", str(chosen.venv / "bin/python"), *([] if CACHE.is_mount() else ["--no-cache"])]
    # Whoever runs the image may not write beside the sources.
    options += [] if chosen.slim else ["--compile-bytecode"]
    wanted = Path("/tmp/wanted.txt")  # noqa: S108
    wanted.write_text("".join(f"{text}\n" for _, text in hashed), encoding="utf-8")
    # uv is some five times faster than pip.
    run("uv", "pip", "install", "-q", "--native-tls", *options, "--require-hashes", "-r", str(wanted))
    wanted.unlink()
    if unhashed:
        run("uv", "pip", "install", "-q", "--native-tls", *options, "--default-index", index, *unhashed)
    if chosen.slim:
        slim(next(chosen.venv.glob("lib/python3*/site-packages")))
    if chosen.image:
        IDENTITY.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(lock.encode()).hexdigest()
        IDENTITY.write_text(json.dumps({"image": chosen.image, "target": chosen.target, "lock": digest}) + "\n", encoding="utf-8")


def slim(site_packages: Path) -> None:
    """Delete `SUPERFLUOUS`."""
    for pattern in SUPERFLUOUS:
        for path in list(site_packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def run(*command: str) -> None:
    """A command that must succeed."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
