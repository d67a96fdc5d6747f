"""Make models/<model>/fp32: the FP32 ONNX model, checked on real images against the ONNX file or torch module that it comes from.

Reads `task`, `source`, `input` and `data.calibration` of params.yaml; `benchmark.batch` is held against the graph, no more.
"""

from functools import partial
from itertools import islice

import numpy as np

from octavo import cli
from octavo.files import replace_dir, sha256_path
from octavo.graph.selection import selects, unpools
from octavo.images.dataset import Images
from octavo.images.feeds import Feeds
from octavo.images.input_sizes import refuse_fixed_sides, refuse_untaken
from octavo.images.purpose import open_images
from octavo.layout import MODEL, variant_dir
from octavo.manifest import block_hash, write_manifest
from octavo.params import load_model
from octavo.progress import say, working
from octavo.runtime.memory import return_freed
from octavo.runtime.session import Session
from octavo.sources import fetch
from octavo.sources.against_file import compare_with_file
from octavo.sources.checks import compare_at_another_size, compare_with_reference, refuse_mixed_batch, told
from octavo.sources.held import as_many
from octavo.sources.loaded import loaded_session
from octavo.tasks.exported import as_read

# Images on which the exported graph is run, where their outputs can be held.
CHECKED = 16


def main() -> None:
    """Parse, export, check by running, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    images = Images(open_images(spec.data, "calibration", f"models.{chosen.model}.data"), spec.input, spec.data.on_bad_image)
    samples = list(islice(images, CHECKED))

    with replace_dir(variant_dir(chosen.model, "fp32")) as folder:
        with working(f"exporting {chosen.model}"):
            fetched = fetch(spec.source, spec.input, folder, [tensor for _, tensor in samples])
        # Exporters hold a network several times, in blocks of all sizes.
        return_freed(cycles=True)
        custom = fetched.custom_ops
        with custom.files({"fp32": folder / MODEL}) as runs:
            # Errors name the setting, or where the file will lie: what is loaded lies in a temporary folder.
            name = custom.described() or str(variant_dir(chosen.model, "fp32") / MODEL)
            session = loaded_session(spec.source, runs["fp32"], name)
        feeds = Feeds.of(session.signature, fetched.input_name, spec.input)
        answer = partial(_answer, session, feeds)
        shape = session.input_shapes[fetched.input_name]
        refuse_fixed_sides(shape, spec.input, f"models.{chosen.model}.input")
        # Here, before hours of work, and again where they are measured: other settings of `benchmark` export nothing anew.
        refuse_untaken(spec, shape, [item for item, _ in samples], answer)
        outputs = as_many(session.run_finite(feeds(tensor), item.name) for item, tensor in samples)
        samples = samples[: len(outputs)]
        spec, refused = as_read(spec, fetched.model, answer)
        made = {
            "source": spec.source.recorded(),
            "file_sha256": sha256_path(spec.source.file),
            "input": block_hash(spec.input),
            "notes": [*fetched.notes, *feeds.told, *refused],
        }
        selecting = selects(fetched.model) or unpools(fetched.model)
        tensors = [tensor for _, tensor in samples]
        if not isinstance(shape[0], int):
            refuse_mixed_batch(answer, tensors, outputs, selecting=selecting, own=None if spec.source.dynamic_batch else shape[0])
        if spec.source.kind == "onnx" and not custom.bodies:
            file = spec.source.file
            made["notes"] += compare_with_file(file, fetched.input_name, spec.input, tensors, outputs, selecting=selecting)
        if fetched.reference is not None:
            hashed = [(item.sha256, tensor) for item, tensor in samples]
            made["torch"] = compare_with_reference(fetched.reference, hashed, outputs, folder, selecting=selecting)
            if spec.source.dynamic_size:
                made["notes"] += compare_at_another_size(fetched.reference, answer, tensors[0], selecting=selecting)
        image_input = fetched.input_name
        # The file is opened once more: what it was made of and checked with need not lie in memory beside that.
        del answer, fetched, session
        return_freed(cycles=True)
        manifest = write_manifest(
            folder, name=chosen.model, variant="fp32", spec=spec, image_input=image_input, made=made, custom_ops=custom
        )
    for note in made["notes"]:
        say(note)
    if "torch" in made:
        say(told(made["torch"]))
    say(f"{variant_dir(chosen.model, 'fp32') / MODEL}: {manifest['bytes'] / 1e6:.1f} MB, ran on {len(samples)} images")


def _answer(session: Session, feeds: Feeds, image: np.ndarray) -> dict[str, np.ndarray]:
    return session.run(feeds(image))


if __name__ == "__main__":
    cli.run(main)
