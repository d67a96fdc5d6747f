"""Make models/<model>/fp16: half-precision weights and activations, with what must stay in float32 found by running it.

Reads `input`, `data.calibration` and `fp16` of params.yaml; runs a handful of calibration images.
"""

from itertools import islice

from octavo import cli
from octavo.files import replace_dir
from octavo.graph.custom_ops import CustomOps, as_in_file
from octavo.graph.io import load, save
from octavo.images.dataset import Images
from octavo.images.feeds import Feeds
from octavo.images.purpose import open_images
from octavo.images.splits import pick
from octavo.layout import MODEL, variant_dir
from octavo.manifest import as_exported, read_manifest, write_manifest
from octavo.params import load_model
from octavo.progress import say, working
from octavo.quantization.decisions import as_records, left_out, reasons, summary
from octavo.quantization.fp16 import NOTHING_TO_CONVERT, quantize_fp16
from octavo.quantization.select import asked

# Images on which overflow and loss are looked for.
VERIFIED = 8


def main() -> None:
    """Parse, convert, verify, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    source = variant_dir(chosen.model, "fp32")
    manifest = read_manifest(source)
    spec, feeds = as_exported(spec, manifest), Feeds.read(manifest)
    found = open_images(spec.data, "calibration", f"models.{chosen.model}.data")
    images = Images(pick(found, VERIFIED, spec.calibrate.seed), spec.input, spec.data.on_bad_image)
    samples = [feeds(tensor) for _, tensor in islice(images, VERIFIED)]

    original, custom = load(source / MODEL), CustomOps.read(source, manifest)
    part = custom.part(original)
    kept = asked(spec.fp16.keep_float, part, custom.float_anyway(original))
    with working(f"converting {chosen.model} to FP16"):
        result = quantize_fp16(part, keep_io=spec.fp16.keep_io, keep_float_patterns=kept, samples=samples)
    decisions = [*result.decisions, *left_out(custom.untouched(original))]
    folder = variant_dir(chosen.model, "fp16")
    with replace_dir(folder) as temporary:
        save(custom.restore(result.model, original), temporary / MODEL)
        made = {
            "from_sha256": manifest["sha256"],
            "settings": spec.fp16.model_dump(mode="json"),
            "nodes": as_records(decisions),
            "verified": {"images": len(samples), "sqnr_db": result.sqnr_db},
        } | ({"warnings": result.warnings} if result.warnings else {})
        written = write_manifest(
            temporary, name=chosen.model, variant="fp16", spec=spec, image_input=feeds.image, made=made, custom_ops=custom
        )
    kept_float = [each for each in decisions if each.precision == "float" and each.reason not in NOTHING_TO_CONVERT]
    for line in reasons(kept_float):
        say(as_in_file(f"stays float32: {line}"))
    for warning in result.warnings:
        say(as_in_file(f"warning: {folder / MODEL}: {warning}"))
    share = written["bytes"] / manifest["bytes"]
    say(f"{folder / MODEL}: {written['bytes'] / 1e6:.1f} MB, {share:.0%} of FP32; {as_in_file(summary(decisions))}")


if __name__ == "__main__":
    cli.run(main)
