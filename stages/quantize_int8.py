"""Make models/<model>/int8 (static) and models/<model>/int8_dynamic from the FP32 model and the statistics.

Choices are measured on some of the calibration images, mostly those that the statistics leave out. A file is accepted once it has
run on some of them; manifest.json records what was chosen, why and what ONNX Runtime runs of it, report.md is for reading. Reads
`task`, `input`, `data.calibration`, `data.on_bad_image`, `calibrate` (to refuse statistics of other images) and `int8` of
params.yaml.
"""

from octavo import cli
from octavo.calibration.statistics import Statistics
from octavo.files import replace_dirs, write_text
from octavo.graph.custom_ops import CustomOps, as_in_file
from octavo.graph.io import load, save
from octavo.images.dataset import image_list
from octavo.images.feeds import Feeds
from octavo.images.purpose import calibration_images, chosen_images
from octavo.layout import MODEL, calibration_dir, variant_dir
from octavo.manifest import as_exported, block_hash, model_bytes, read_manifest, write_manifest
from octavo.params import load_model
from octavo.progress import say, working
from octavo.quantization.decisions import left_out, summary
from octavo.quantization.int8 import Images, dynamic_target, made_here, quantize_dynamic, quantize_static
from octavo.quantization.report import markdown
from octavo.quantization.select import asked
from octavo.quantization.verification import images_to_verify, verified
from octavo.runtime.memory import return_freed
from octavo.runtime.spilled import Spill
from octavo.tasks.detection import readers_of
from octavo.tasks.outputs import class_axis

# Calibration images for what the statistics do not know: tensors that exact rewriting made or scaled.
CALIBRATION = 32


def main() -> None:
    """Parse, quantize twice, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    source, where = variant_dir(chosen.model, "fp32"), f"models.{chosen.model}.data"
    manifest, calibration = read_manifest(source), str(calibration_dir(chosen.model))
    spec, feeds, spill = as_exported(spec, manifest), Feeds.read(manifest), Spill()
    spec = spec.model_copy(update={"int8": made_here(spec.int8)})
    statistics = Statistics.load(calibration)
    original, custom = load(source / MODEL), CustomOps.read(source, manifest)
    statistics.require({"model": manifest["sha256"], "input": block_hash(spec.input), **custom.origin()}, calibration)
    items, picked, apart = calibration_images(spec, where)
    statistics.require_images(image_list(picked), (item.sha256 for item in apart), calibration)
    model = custom.part(original)
    kept = asked(spec.int8.keep_float, model, custom.float_anyway(original))
    recipe = spec.int8.model_copy(update={"keep_float": kept}).of_task(spec.task.name)
    counted, held_out = (
        [(item.name, spill.put(feeds(tensor))) for item, tensor in chosen_images(spec, files, where, items)]
        for files in (statistics.files("files")[:CALIBRATION], statistics.files("held_out"))
    )
    cut = [value.name for value in model.graph.outputs] != [value.name for value in original.graph.outputs]
    readers = readers_of(spec.task, feeds.image, spec.input.layout, cut=cut)
    images = Images([fed for _, fed in counted], [fed for _, fed in held_out], *readers, together=spec.task.name == "embedding")

    with working(f"quantizing {chosen.model}"):
        static = quantize_static(model, statistics, recipe, images)
        results = {"int8": static, "int8_dynamic": quantize_dynamic(model, recipe, statistics)}
    with replace_dirs(variant_dir(chosen.model, variant) for variant in results) as folders:
        for (variant, result), temporary in zip(results.items(), folders, strict=True):
            folder, decisions = variant_dir(chosen.model, variant), [*result.decisions, *left_out(custom.untouched(original))]
            used = {key: statistics.origin.get(key) for key in ("images", "samples")} | {"held_out": len(held_out)}
            made = {"from_sha256": manifest["sha256"], "settings": spec.int8.model_dump(mode="json"), "calibration": used}
            made |= {"corrected_biases": result.corrected, "measured": result.measured}
            # Graphs are cycles: what was tried lies in memory until it is looked for; three sessions are opened for the file now.
            return_freed(cycles=True)
            result.write_beside(temporary)
            save(custom.restore(result.model, original), temporary / MODEL)
            made |= verified(
                temporary / MODEL,
                source / MODEL,
                decisions,
                [*held_out, *counted][: images_to_verify(static.macs)],
                name=str(folder / MODEL),
                custom=custom,
                sizes=(manifest["bytes"], model_bytes(temporary)),
                classes=class_axis(spec.task),
                original=original,
                kept_db=result.kept_db,
                asked_db=static.measured.get("fidelity_db") if variant == "int8_dynamic" else None,
                target=spec.int8.target if variant == "int8" else dynamic_target(spec.int8.target),
            )
            warned = result.warnings(repair=spec.int8.repair, share=made["executed"].get("int8_share"))
            made["warnings"] = [*warned, *made["warnings"]]
            about = {"name": chosen.model, "variant": variant, "spec": spec, "image_input": feeds.image}
            written = write_manifest(temporary, **about, made=made, custom_ops=custom)
            write_text(temporary / "report.md", markdown(written))
            for warning in written["made"]["warnings"]:
                say(f"warning: {folder / MODEL}: {warning}")
            size = f"{written['bytes'] / 1e6:.1f} MB, {made['size_ratio']:.0%} of FP32"
            say(f"{folder / MODEL}: {size}; {as_in_file(summary(decisions))}")


if __name__ == "__main__":
    cli.run(main)
