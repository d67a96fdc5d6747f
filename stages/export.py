"""Make models/<model>/fp32: the FP32 ONNX model, checked on real images against its torch module where it comes from one.

Reads `source` and `input` of params.yaml, and a few calibration images to run the model on.
"""

from itertools import islice

import numpy as np

from octavo import cli
from octavo.deploy.manifest import block_hash, write_manifest
from octavo.errors import SourceError
from octavo.files import replace_dir, sha256_file
from octavo.images.dataset import Images, open_set
from octavo.layout import MODEL, variant_dir
from octavo.params import load_model
from octavo.progress import say, track
from octavo.runtime.session import Session
from octavo.sources import fetch

# Images on which the exported graph is held against the torch module.
CHECKED = 16
# Rounding differs between two implementations of FP32; more than this share of the largest output is a wrong export.
TOLERANCE = 1e-3


def main() -> None:
    """Parse, export, compare, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    images = Images(open_set(spec.data.calibration, f"models.{chosen.model}.data.calibration"), spec.input, spec.data.on_bad_image)
    samples = list(islice(images, CHECKED))

    with replace_dir(variant_dir(chosen.model, "fp32")) as folder:
        fetched = fetch(spec.source, spec.input, folder, [tensor for _, tensor in samples])
        session = Session(folder / MODEL)
        made = {"source": spec.source.model_dump(mode="json"), "file_sha256": sha256_file(spec.source.file), "notes": fetched.notes}
        truths = []
        for item, tensor in track(samples, "checking the export"):
            outputs = session.run_finite({fetched.input_name: tensor}, item.name)
            if fetched.reference is not None:
                truths.append((item, fetched.reference(tensor), outputs))
        if truths:
            largest = max(float(np.abs(truth[key] - outputs[key]).max()) for _, truth, outputs in truths for key in truth)
            scale = max(float(np.abs(truth[key]).max()) for _, truth, _ in truths for key in truth)
            if largest > TOLERANCE * max(scale, 1e-6):
                raise SourceError(
                    f"the exported graph differs from the torch module by {largest:.3g} (outputs reach {scale:.3g})",
                    "try the other `source.exporter`, or another `source.opset`",
                )
            made["torch"] = {"images": len(truths), "max_abs_diff": largest, "largest_output": scale}
            say(f"largest difference to the torch module on {len(truths)} images: {largest:.3g} (outputs reach {scale:.3g})")
            # The torch module's own outputs, so that `validate` can compare without torch.
            references = {f"{item.sha256}/{key}": value for item, truth, _ in truths for key, value in truth.items()}
            np.savez_compressed(folder / "torch_outputs.npz", **references)
        manifest = write_manifest(
            folder, name=chosen.model, variant="fp32", spec=spec, made=made | {"input": block_hash(spec.input)}
        )
    for note in fetched.notes:
        say(note)
    say(f"{variant_dir(chosen.model, 'fp32') / MODEL}: {manifest['bytes'] / 1e6:.1f} MB, opset and shapes checked, runs")


if __name__ == "__main__":
    cli.run(main)
