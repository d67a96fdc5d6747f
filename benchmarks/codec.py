"""What the embedding codec costs and saves: sizes, verification with coded embeddings beside float32, throughput.

    PYTHONPATH=. python benchmarks/codec.py [--data FOLDER] [--rounds 30]

faces: the FP32 MobileFaceNet on the data folder's photos, each as it is, mirrored, and in two tighter crops; pairs are of different
photos. Without --data this set is left out. clusters: unit vectors, people x samples, each sample its person's centre and noise of
a length of its own, so that pairs of one person are spread from easy to hopeless; uneven: the same with channels of very different
spread (log-normal), which is hard for one scale a vector.

TAR: the share of pairs of one person above the threshold at which pairs of two people pass at the rate FAR; "-" where fewer than
ten such pairs would decide it. "At FP32's threshold": both rates where the service keeps the threshold that was set with floats,
for FAR 1e-3. Exits with 1 where AUC or a TAR loses half a percent or more of its value.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from arguments import DATA, environment_path
from networks import FACE_WARP, Network, network
from octavo.deploy import codec
from octavo.images.decode import read_image
from octavo.images.preprocess import preprocess
from octavo.progress import track
from octavo.runtime.host import fingerprint
from octavo.runtime.session import Session
from octavo.runtime.timing import interleaved

RATES = (1e-1, 1e-2, 1e-3, 1e-4)
# Impostor pairs that must lie above a threshold for it to say anything.
DECIDING = 10
BAR = 0.005
SEED = 0


@dataclass(frozen=True)
class Gallery:
    """Embeddings with whose they are; pairs of one photo do not count.

    Attributes:
        vectors: N x D float32.
        people: N whole numbers.
        photos: N whole numbers.
    """

    vectors: np.ndarray
    people: np.ndarray
    photos: np.ndarray

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices into the flat N x N scores: (pairs of one person, pairs of two), each unordered pair once."""
        first, second = np.triu_indices(len(self.vectors), 1)
        counts = self.photos[first] != self.photos[second]
        same = self.people[first] == self.people[second]
        flat = first * len(self.vectors) + second
        return flat[counts & same], flat[counts & ~same]


def main() -> int:
    """Print all tables; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=environment_path(DATA), help=f"the benchmark data's folder (or {DATA})")
    parser.add_argument("--people", type=int, default=1000, help="people of the synthetic sets (default: 1000)")
    parser.add_argument("--samples", type=int, default=5, help="samples of each (default: 5)")
    parser.add_argument("--rounds", type=int, default=30, help="timed runs of each function; 0 leaves timing out (default: 30)")
    chosen = parser.parse_args()

    generator = np.random.default_rng(SEED)
    sets = {"faces, 128-d": photographed(network("mobilefacenet", chosen.data))} if chosen.data else {}
    for dim in (128, 512):
        sets[f"clusters, {dim}-d"] = clusters(generator, chosen.people, chosen.samples, dim)
    sets["uneven, 512-d"] = clusters(generator, chosen.people, chosen.samples, 512, uneven=True)

    print(sizes(generator), "\n")
    lines, missed = matching(sets)
    print(lines, "\n")
    print(scales(sets), "\n")
    if chosen.rounds:
        print(throughput(generator, chosen.rounds), "\n")
    host = fingerprint()
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"Host {host['id']}: {host['cpu']}, {host['cores']} cores; numpy {np.__version__}, OMP_NUM_THREADS {threads}.")
    for line in missed:
        print(f"missed: {line}")
    return int(bool(missed))


# ---- embeddings ----


def photographed(faces: Network) -> Gallery:
    """FP32 embeddings of every photo in four views."""
    session = Session(faces.file)
    name = faces.input_name()
    vectors, people, photos = [], [], []
    items = [item for part in ("calibration", "validation") for item in faces.items(part)]
    for photo, item in enumerate(track(items, "faces")):
        for view in views(read_image(item.path)):
            found = next(iter(session.run({name: preprocess(view, faces.spec)}).values()))
            vectors.append(found.reshape(-1).astype(np.float32))
            people.append(item.label)
            photos.append(photo)
    return Gallery(np.stack(vectors), np.array(people), np.array(photos))


def views(image: np.ndarray) -> Iterator[np.ndarray]:
    """The network's crop of a photo, that mirrored, and two nearer ones about the crop's centre, moved a little."""
    for zoom, shift, mirrored in ((1.0, 0, False), (1.0, 0, True), (1.08, 2, False), (1.15, -3, True)):
        warp = zoom * FACE_WARP
        warp[:, 2] += (1 - zoom) * 56 + shift
        view = cv2.warpAffine(image, warp, (112, 112))
        yield np.ascontiguousarray(view[:, ::-1]) if mirrored else view


def clusters(generator: np.random.Generator, people: int, samples: int, dim: int, *, uneven: bool = False) -> Gallery:
    """Unit vectors around a random centre a person; noise of a length drawn for each, the centre's being 1."""
    low, high = (0.05, 0.6) if uneven else (0.3, 2.5)
    gains = generator.lognormal(0, 1, dim) if uneven else np.ones(dim)
    centres = generator.standard_normal((people, 1, dim)) * gains
    noise = generator.standard_normal((people, samples, dim)) * gains * generator.uniform(low, high, (people, samples, 1))
    vectors = (centres + noise).reshape(-1, dim)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Gallery(vectors.astype(np.float32), np.repeat(np.arange(people), samples), np.arange(people * samples))


# ---- matching ----


def matching(sets: dict[str, Gallery]) -> tuple[str, list[str]]:
    """A Markdown table of AUC and TAR, and lines on what missed the bar."""
    heads = ["embeddings", "pairs of one person, of two", "coded", "AUC", *(f"TAR at FAR {rate:.0e}" for rate in RATES)]
    heads += ["largest loss", "at FP32's threshold: TAR, FAR"]
    lines, missed = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"], []
    for name, gallery in sets.items():
        one, two = gallery.pairs()
        reference: np.ndarray | None = None
        fixed = 0.0
        for sides, scores in scored(gallery):
            same, others = scores[one], np.sort(scores[two])
            figures = np.array([auc(same, others), *(tar(same, others, rate) for rate in RATES)])
            if reference is None:
                reference = figures
                fixed = threshold(others, 1e-3)
            losses = 1 - figures / reference
            loss = float(np.nanmax(losses))
            kept = f"{(same > fixed).mean():.4f}, {(others > fixed).mean():.2e}"
            cells = [name, f"{len(one)}, {len(two)}", sides, f"{figures[0]:.5f}", *map(cell, figures[1:])]
            lines.append(f"| {' | '.join([*cells, '-' if sides == 'no' else f'{loss:+.2%}', kept])} |")
            if loss >= BAR:
                missed.append(f"{name}, {sides} coded: {loss:.2%}")
    return "\n".join(lines), missed


def scored(gallery: Gallery) -> Iterator[tuple[str, np.ndarray]]:
    """(which sides are coded, all N x N cosines, flat). Coded sides are what a reader has of them, text and binary."""
    unit = unit_length(gallery.vectors)
    yield "no", (unit @ unit.T).ravel()
    for bits in codec.LIMITS:
        coded = codec.read_block(codec.encode_block(gallery.vectors, bits))
        decoded = unit_length(codec.decode_tokens(codec.encode_tokens(gallery.vectors, bits=bits)))
        yield f"one side, int{bits}", (unit @ decoded.T).ravel()
        yield f"both sides, int{bits}", codec.cosine(coded, coded).ravel()


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1; float32."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def auc(same: np.ndarray, others: np.ndarray) -> float:
    """Area under the ROC curve as the Mann-Whitney statistic, ties by half; `others` is sorted."""
    below = np.searchsorted(others, same, "left") + np.searchsorted(others, same, "right")
    return float(below.mean() / 2 / len(others))


def threshold(others: np.ndarray, rate: float) -> float:
    """The score that a share `rate` of the sorted `others` exceeds, at most."""
    return float(others[len(others) - 1 - int(rate * len(others))])


def tar(same: np.ndarray, others: np.ndarray, rate: float) -> float:
    """The share of `same` above the threshold for `rate`; NaN where too few of `others` lie there."""
    return float((same > threshold(others, rate)).mean()) if rate * len(others) >= DECIDING else float("nan")


def cell(value: float) -> str:
    """Four digits, or a dash."""
    return "-" if np.isnan(value) else f"{value:.4f}"


def scales(sets: dict[str, Gallery]) -> str:
    """A table of other ways to choose the scale: 1 - cosine of the coded vector to its own, mean, in millionths."""
    clips = (1.0, 0.95, 0.9, 0.8)
    lines = [
        "| embeddings | bits | largest magnitude | clipped at .95 of it | .9 | .8 | best of these a vector | least squares | "
        "length, decoded over own |",
        f"|{'---|' * 9}",
    ]
    for name, gallery in sets.items():
        vectors = gallery.vectors.astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        for bits, limit in codec.LIMITS.items():
            away = []
            for clip in clips:
                steps = np.abs(vectors).max(axis=1, keepdims=True) * clip / limit
                codes = np.clip(np.rint(vectors / steps), -limit, limit)
                inner = (vectors * codes).sum(axis=1)
                away.append(1 - inner / np.linalg.norm(codes, axis=1) / lengths)
            coded = codec.quantize(gallery.vectors, bits)
            # The scale that fits best after rounding: another length, the same direction.
            fitted = (
                coded.codes * ((vectors * coded.codes).sum(axis=1) / np.square(coded.codes.astype(np.float64)).sum(axis=1))[:, None]
            )
            fit = 1 - (vectors * fitted).sum(axis=1) / np.linalg.norm(fitted, axis=1) / lengths
            longer = np.linalg.norm(coded.vectors().astype(np.float64), axis=1) / lengths
            cells = [f"{1e6 * values.mean():.0f}" for values in (*away, np.min(away, axis=0), fit)]
            lines.append(f"| {' | '.join([name, str(bits), *cells, f'{longer.mean():.5f}'])} |")
    return "\n".join(lines)


# ---- sizes and speed ----


def sizes(generator: np.random.Generator) -> str:
    """A Markdown table of bytes for one vector."""
    forms = ["base64 of float32", "JSON list of floats", "token, int8", "token, int6", "block of one, int8", "block of 1000, int8"]
    forms += ["block of one, int6", "block of 1000, int6"]
    lines = [f"| dimension | float32 | {' | '.join(forms)} |", f"|{'---|' * (len(forms) + 2)}"]
    for dim in (128, 512, 1024):
        vectors = unit_length(generator.standard_normal((1000, dim), dtype=np.float32))
        raw = vectors[0].nbytes
        found = [
            len(base64.b64encode(vectors[0].tobytes())),
            len(json.dumps([float(str(value)) for value in vectors[0]], separators=(",", ":"))),
        ]
        found += [float(np.mean([len(token) for token in codec.encode_tokens(vectors, bits=bits)])) for bits in codec.LIMITS]
        for bits in codec.LIMITS:
            found += [len(codec.encode_block(vectors[:1], bits)), len(codec.encode_block(vectors, bits)) / 1000]
        lines.append(f"| {dim} | {raw} | " + " | ".join(f"{size:.0f} ({size / raw - 1:+.1%})" for size in found) + " |")
    return "\n".join(lines)


def throughput(generator: np.random.Generator, rounds: int, count: int = 2000) -> str:
    """A Markdown table of vectors (for cosine: pairs) a second, from medians of interleaved rounds."""
    names = ["to tokens", "from tokens", "to a block", "from a block", "cosine of codes, pairs", "cosine of floats, pairs"]
    lines = [f"| thousands a second | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    for dim in (128, 512):
        vectors = unit_length(generator.standard_normal((count, dim), dtype=np.float32))
        for bits in codec.LIMITS:
            tokens, block = codec.encode_tokens(vectors, bits=bits), codec.encode_block(vectors, bits)
            codes = codec.read_block(block)
            runners = {
                "to tokens": lambda x=vectors, b=bits: codec.encode_tokens(x, bits=b),
                "from tokens": lambda t=tokens: codec.decode_tokens(t),
                "to a block": lambda x=vectors, b=bits: codec.encode_block(x, b),
                "from a block": lambda b=block: codec.decode_block(b),
                "cosine of codes, pairs": lambda c=codes: codec.cosine(c, c),
                "cosine of floats, pairs": lambda x=vectors: x @ x.T,
            }
            taken = interleaved(runners, rounds=rounds, warmup=2)
            each = [(count * count if "pairs" in name else count) / taken[name].median for name in names]
            lines.append(f"| {dim}-d, int{bits} | {' | '.join(f'{rate:,.0f}' for rate in each)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
