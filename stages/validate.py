"""Prove what was kept: every variant against FP32 on the validation images, into metrics/<model>/.

Writes accuracy.json (the record, described in docs/metrics.md), layers.csv (SQNR of every INT8 layer, all before it quantized too),
sensitivity.csv (SQNR with one rounding alone, as quantize_int8 measured it), roc.csv (of embeddings), images.csv (each image)
and pictures/ (the images on which INT8 and FP32 differ most). Reads `task`, `input`,
`data`, `validate` and `benchmark.resolutions` of params.yaml. A failed gate is written down, not an error: see `*.gate.*`.
"""

from itertools import islice

from octavo import cli
from octavo.calibration.statistics import Statistics
from octavo.evidence.baseline import torch_baseline
from octavo.evidence.cost import cost_gates, kernel_gates
from octavo.evidence.layers import layer_noise, read_growth, write_noise
from octavo.evidence.pictures import write_pictures
from octavo.evidence.remarks import remarks
from octavo.evidence.resolutions import at_resolutions
from octavo.evidence.roc import COLUMNS, roc_rows
from octavo.evidence.validation import Validation
from octavo.files import replace_inside, write_csv, write_json
from octavo.graph.io import load
from octavo.graph.selection import pasted, selects
from octavo.images.dataset import Images
from octavo.images.purpose import refuse_calibrated
from octavo.layout import REFERENCE, calibration_dir, metrics_dir, skipped_variants, variant_dir
from octavo.manifest import as_exported
from octavo.params import load_model
from octavo.progress import say, track
from octavo.runtime.entries import session_warning
from octavo.tasks.embedding.flip import answering
from octavo.tasks.registry import compared_outputs, model_classes, plugin_behind
from octavo.variants import Variants


def main() -> None:
    """Parse, run all variants over the images, write the evidence."""
    chosen = cli.parser(__doc__).parse_args()
    spec, variants = load_model(chosen.params, chosen.model), Variants.read(chosen.model)
    spec, feeds, custom = as_exported(spec, variants.manifest), variants.feeds, variants.custom
    original = load(variants.paths[REFERENCE])
    compared = custom.compared(original) if custom.bodies else compared_outputs(spec.task)
    network = variants.sessions(compared)
    fp32, selecting = network[REFERENCE], selects(original)
    answer = lambda image: fp32.run(feeds(image))  # noqa: E731 - FP32, from an image's tensor
    scored = variants.scored(fp32)
    plugin = plugin_behind(spec.task, spec.input, answer, custom.ends(original)) if scored is None else None
    scored = plugin.reads if plugin else scored
    classes = model_classes(spec.task, spec.input, answer, scored, plugin)
    items = variants.images(spec, fp32, classes)
    calibrated = Statistics.load(calibration_dir(chosen.model)).origin
    refuse_calibrated([*calibrated["files"], *calibrated["held_out"]], items, spec.data)
    images = Images(items, spec.input, spec.data.on_bad_image)
    sessions = answering(network, spec.task, spec.input, feeds.image)
    validation = Validation(spec.task, spec.input, sessions, feeds, compared, scored, selecting, spec.data.holdout, plugin)
    validation.run(track(images, f"validating {chosen.model}"))
    record = validation.record(spec.validation) | {"skipped": len(images.skipped)}
    record |= at_resolutions(spec, validation, items, track)
    record |= custom.metrics() | ({"compared": ", ".join(compared)} if compared else {})
    record |= {"pasted": ", ".join(moved)} if not compared and (moved := pasted(original)) else {}
    one = feeds(next(iter(Images(items, spec.input, "skip")))[1])
    judged, notes = cost_gates(spec.validation.gates, variants.sizes, sessions, one, variants.manifests)
    record |= judged | kernel_gates(spec.validation.gates, variants.manifests)
    record |= skipped_variants(chosen.model)
    record |= torch_baseline(variant_dir(chosen.model, REFERENCE), fp32, feeds, spec, selecting=selecting)

    def samples():
        for item, tensor in islice(Images(items, spec.input, spec.data.on_bad_image), spec.validation.layer_samples):
            yield item.name, feeds(tensor)

    layers = []
    if "int8" in variants.paths:
        # What the variants' runs left in memory does not lie there beside two graphs more.
        for session in network.values():
            session.shrink(one)
        int8 = custom.whole(load(variants.paths["int8"]))
        layers = layer_noise(custom.whole(original), int8, samples, read_growth(chosen.model))
    folder = metrics_dir(chosen.model)
    with replace_inside(folder) as temporary:
        write_noise(temporary, chosen.model, layers)
        write_pictures(temporary / "pictures", validation, spec.validation.pictures)
        write_csv(temporary / "images.csv", validation.rows())
        write_csv(temporary / "roc.csv", roc_rows(validation), COLUMNS)
        write_json(temporary / "accuracy.json", record)
    notes += filter(None, [*variants.notes, session_warning(variants.entries.values())])
    lines = [f"note: {note}" for note in notes]
    lines += [f"{operator}: {ran}; compared: {', '.join(compared)}" for operator, ran in custom.metrics().items()]
    lines += [f"skipped: {skipped}" for skipped in images.skipped]
    for line in [*lines, *remarks(record)]:
        say(line)
    say(f"{folder / 'accuracy.json'}: {len(sessions)} variants on {record['images']} images, {record['labelled']} of them labelled")


if __name__ == "__main__":
    cli.run(main)
