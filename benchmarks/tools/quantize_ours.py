"""Octavo, as its stages call it, in two processes as they are.

calibrate MODEL.onnx FOLDER_OF_NPY WORK_FOLDER REPORT.json
quantize  WORK_FOLDER FOLDER_OF_NPY TASK INT8 OUT.onnx REPORT.json

INT8 is the block of that name in params.yaml, as JSON: `{}`, or what is set in it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from child import Arrays, measured

from octavo.calibration.collector import collect
from octavo.calibration.statistics import Statistics
from octavo.graph.clean import clean
from octavo.graph.inspect import image_input
from octavo.graph.io import load, save
from octavo.params.grammar import Detection, Int8, OnnxSource
from octavo.quantization.int8 import Images, made_here, quantize_static
from octavo.runtime.spilled import Spill
from octavo.tasks.detection import readers_of

# As the stages have them: `calibrate.held_out`, and the images for tensors that statistics do not know.
HELD_OUT, CALIBRATION = 16, 32


def calibrate(model: str, arrays: str, work: str) -> None:
    """The export of an ONNX file and the calibrate stage: work/fp32.onnx and work/calibration."""
    graph = load(model)
    clean(graph, OnnxSource(kind="onnx", file=model).opset)
    save(graph, Path(work) / "fp32.onnx")
    feeds = Arrays(arrays, image_input(graph, None).name)

    def counted() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        read = enumerate(zip(feeds.files, feeds, strict=True))
        return ((file.name, feed) for place, (file, feed) in read if not _held_out(place))

    statistics = collect(load(Path(work) / "fp32.onnx"), counted)
    statistics.save(Path(work) / "calibration")


def quantize(work: str, arrays: str, task: str, int8: str, out: str) -> None:
    """The quantize_int8 stage; a task of another name than `embedding` and `detection` changes nothing."""
    graph, statistics = load(Path(work) / "fp32.onnx"), Statistics.load(Path(work) / "calibration")
    spill = Spill()
    feeds = [spill.put(feed) for feed in Arrays(arrays, image_input(graph, None).name)]
    held_out = [feed for place, feed in enumerate(feeds) if _held_out(place)]
    counted = [feed for place, feed in enumerate(feeds) if not _held_out(place)]
    recipe = made_here(Int8.model_validate_json(int8)).of_task(task)
    readers = readers_of(Detection(name="detection") if task == "detection" else None, image_input(graph, None).name)
    images = Images(counted[:CALIBRATION], held_out[:HELD_OUT], *readers, together=task == "embedding")
    save(quantize_static(graph, statistics, recipe, images).model, out)


def _held_out(place: int) -> bool:
    """One image in four is measured on and not calibrated on, as the stages part them."""
    return place % 4 == 3


def main(step: str, *arguments: str) -> None:
    """Do one step and report."""
    *rest, report = arguments
    measured(lambda: {"calibrate": calibrate, "quantize": quantize}[step](*rest), report, ["octavo", "onnxruntime", "onnx"])


if __name__ == "__main__":
    main(*sys.argv[1:])
