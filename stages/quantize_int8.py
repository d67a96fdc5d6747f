"""Make models/<model>/int8 (static) and models/<model>/int8_dynamic from the FP32 model and the statistics.

Choices are measured on some of the calibration images, mostly those that the statistics leave out. Reads `input`,
`data.calibration`, `data.on_bad_image` and `int8` of params.yaml.
"""

from octavo import cli
from octavo.calibration.statistics import Statistics
from octavo.deploy.manifest import block_hash, read_manifest, write_manifest
from octavo.files import replace_dir
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load, save
from octavo.images.dataset import chosen_images
from octavo.layout import MODEL, calibration_dir, variant_dir
from octavo.params import load_model
from octavo.progress import say, working
from octavo.quantization.decisions import as_records, left_out, summary
from octavo.quantization.int8 import Images, quantize_dynamic, quantize_static

# Calibration images for what the statistics do not know: tensors that exact rewriting made or scaled.
CALIBRATION = 32


def main() -> None:
    """Parse, quantize twice, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    source = variant_dir(chosen.model, "fp32")
    manifest = read_manifest(source)
    statistics = Statistics.load(calibration_dir(chosen.model))
    statistics.require({"model": manifest["sha256"], "input": block_hash(spec.input)}, str(calibration_dir(chosen.model)))
    original, custom = load(source / MODEL), CustomOps.read(source, manifest)
    model = custom.part(original)
    where = f"models.{chosen.model}.data.calibration"
    images = Images(
        *(
            [{manifest["image_input"]: tensor} for _, tensor in chosen_images(spec, files, where)]
            for files in (statistics.origin["files"][:CALIBRATION], statistics.origin["held_out"])
        )
    )

    with working(f"quantizing {chosen.model}"):
        results = {
            "int8": quantize_static(model, statistics, spec.int8, images),
            "int8_dynamic": quantize_dynamic(model, spec.int8, statistics),
        }
    for variant, result in results.items():
        decisions = [*result.decisions, *left_out(custom.untouched(original))]
        made = {
            "from_sha256": manifest["sha256"],
            "settings": spec.int8.model_dump(mode="json"),
            "calibration": {key: statistics.origin[key] for key in ("images", "samples")},
            "corrected_biases": result.corrected,
            "measured": result.measured,
            "nodes": as_records(decisions),
        }
        folder = variant_dir(chosen.model, variant)
        with replace_dir(folder) as temporary:
            save(custom.restore(result.model, original), temporary / MODEL)
            written = write_manifest(
                temporary,
                name=chosen.model,
                variant=variant,
                spec=spec,
                image_input=manifest["image_input"],
                made=made,
                custom_ops=custom,
            )
        share = written["bytes"] / manifest["bytes"]
        say(f"{folder / MODEL}: {written['bytes'] / 1e6:.1f} MB, {share:.0%} of FP32; {summary(decisions)}")


if __name__ == "__main__":
    cli.run(main)
