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
from octavo.evidence.report import remarks
from octavo.evidence.resolutions import at_resolutions
from octavo.evidence.roc import COLUMNS, roc_rows
from octavo.evidence.validation import Validation
from octavo.files import write_csv, write_json
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load
from octavo.graph.selection import selects
from octavo.images.dataset import Images
from octavo.images.feeds import Feeds
from octavo.images.input_sizes import refuse_untaken
from octavo.images.purpose import open_images, refuse_calibrated
from octavo.layout import calibration_dir, metrics_dir, present_variants, skipped_variants, variant_dir
from octavo.manifest import as_exported, model_bytes, own_manifest, read_manifest, session_entries
from octavo.params import load_model
from octavo.progress import say, track
from octavo.runtime.session import Session, session_warning
from octavo.tasks.embedding.flip import answering
from octavo.tasks.registry import compared_outputs, model_classes


def main() -> None:
    """Parse, run all variants over the images, write the evidence."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    manifest = read_manifest(variant_dir(chosen.model, "fp32"))
    spec = as_exported(spec, manifest)
    paths = present_variants(chosen.model)
    original, custom = load(paths["fp32"]), CustomOps.read(variant_dir(chosen.model, "fp32"), manifest)
    compared = custom.compared(original) if custom.bodies else compared_outputs(spec.task)
    feeds, where = Feeds.read(manifest), f"models.{chosen.model}.data"
    manifests = {variant: own_manifest(path.parent) for variant, path in paths.items()}
    with custom.files(paths, outputs=compared if custom.bodies else []) as runs:
        network = {variant: Session(path, entries=session_entries(manifests[variant])) for variant, path in runs.items()}
    sessions = answering(network, spec.task, spec.input, feeds.image)
    own = [output["name"] for output in manifest["outputs"]]
    scored = own if set(own) <= set(network["fp32"].outputs) else None
    classes = model_classes(spec.task, spec.input, lambda image: network["fp32"].run(feeds(image)), scored)
    items = open_images(spec.data, "validation", where, classes)
    calibrated = Statistics.load(calibration_dir(chosen.model)).origin
    refuse_calibrated([*calibrated["files"], *calibrated["held_out"]], items, spec.data)
    refuse_untaken(spec, network["fp32"].input_shapes[feeds.image], items, lambda image: network["fp32"].run(feeds(image)))
    images = Images(items, spec.input, spec.data.on_bad_image)
    selecting = selects(original)
    validation = Validation(spec.task, spec.input, sessions, feeds, compared, scored, selecting, spec.data.holdout)
    validation.run(track(images, f"validating {chosen.model}"))
    record = validation.record(spec.validation) | {"skipped": len(images.skipped)}
    record |= at_resolutions(spec, validation, items, track)
    record |= custom.metrics() | ({"compared": ", ".join(compared)} if compared else {})
    sizes = {variant: model_bytes(path.parent) for variant, path in paths.items()}
    judged, notes = cost_gates(spec.validation.gates, sizes, sessions, feeds(next(iter(Images(items, spec.input, "skip")))[1]))
    record |= judged | kernel_gates(spec.validation.gates, manifests)
    record |= skipped_variants(chosen.model)
    record |= torch_baseline(variant_dir(chosen.model, "fp32"), network["fp32"], feeds, spec, selecting=selecting)

    def samples():
        for item, tensor in islice(Images(items, spec.input, spec.data.on_bad_image), spec.validation.layer_samples):
            yield item.name, feeds(tensor)

    layers = []
    if "int8" in paths:
        layers = layer_noise(custom.whole(original), custom.whole(load(paths["int8"])), samples, read_growth(chosen.model))
    folder = metrics_dir(chosen.model)
    write_noise(chosen.model, layers)
    write_pictures(folder / "pictures", validation, spec.validation.pictures)
    write_csv(folder / "images.csv", validation.rows())
    write_csv(folder / "roc.csv", roc_rows(validation), COLUMNS)
    write_json(folder / "accuracy.json", record)
    for note in notes:
        say(f"note: {note}")
    for operator, ran in custom.metrics().items():
        say(f"{operator}: {ran}; compared: {', '.join(compared)}")
    for skipped in images.skipped:
        say(f"skipped: {skipped}")
    for remark in remarks(record):
        say(remark)
    if warning := session_warning(map(session_entries, manifests.values())):
        say(f"note: {warning}")
    say(f"{folder / 'accuracy.json'}: {len(sessions)} variants on {record['images']} images, {record['labelled']} of them labelled")


if __name__ == "__main__":
    cli.run(main)
