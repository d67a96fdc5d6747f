"""Make models/<model>/calibration: statistics of every activation over the calibration images (thresholds are chosen later).

Reads `input`, `data` (but `validation` and `train`) and `calibrate` of params.yaml; the only stage that runs calibration images.
"""

from octavo import cli
from octavo.calibration.collector import collect
from octavo.errors import DataError
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load
from octavo.images.dataset import Images, image_list
from octavo.images.feeds import Feeds
from octavo.images.purpose import open_images
from octavo.images.splits import hold_out, pick
from octavo.layout import MODEL, calibration_dir, variant_dir
from octavo.manifest import block_hash, read_manifest
from octavo.params import load_model
from octavo.progress import say, track


def main() -> None:
    """Parse, run the images once, write statistics."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    folder = variant_dir(chosen.model, "fp32")
    manifest = read_manifest(folder)
    where = f"models.{chosen.model}.data"
    found = open_images(spec.data, "calibration", where)
    items = pick(found, spec.calibrate.samples, spec.calibrate.seed)
    if len(items) < spec.calibrate.samples:
        raise DataError(
            f"{where}.calibration: {spec.data.calibration.path} has {len(items)} different images, "
            f"{spec.calibrate.samples} are asked for",
            f"add images, or set `models.{chosen.model}.calibrate.samples: {len(items)}`",
        )
    counted, held_out = hold_out(items, spec.calibrate)
    images = Images(counted, spec.input, spec.data.on_bad_image)
    feeds = Feeds.read(manifest)

    def samples():
        for item, tensor in track(images, f"calibrating {chosen.model}"):
            yield item.name, feeds(tensor)

    custom = CustomOps.read(folder, manifest)
    statistics = collect(custom.part(load(folder / MODEL)), samples)
    statistics.origin = {
        "model": manifest["sha256"],
        "input": block_hash(spec.input),
        **custom.origin(),
        "images": image_list(items),
        "samples": len(counted) - len(images.skipped),
        "skipped": images.skipped,
        "files": [[item.name, item.sha256] for item in counted],
        "held_out": [[item.name, item.sha256] for item in held_out],
    }
    statistics.save(calibration_dir(chosen.model))
    if infinite := sorted(name for name, tensor in statistics.tensors.items() if tensor.infinite):
        say(f"infinite on some image, and left in float for that: {', '.join(infinite)}")
    for skipped in images.skipped:
        say(f"skipped: {skipped}")
    if images.skipped:
        say(f"warning: ranges come from {statistics.origin['samples']} of {len(counted)} images: the others cannot be read")
    say(f"{calibration_dir(chosen.model)}: {len(statistics.tensors)} tensors over {statistics.origin['samples']} images")


if __name__ == "__main__":
    cli.run(main)
