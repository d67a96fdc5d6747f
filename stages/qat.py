"""Make models/<model>/qat: INT8 by quantization-aware training (`qat.enabled: true`), from FP32's weights and calibration's ranges.

Trains on `data.train`: by its labels and towards FP32's answers, or by these alone where it has none. Checkpoints lie in
models/<model>/.qat until the run is done; a run that was killed goes on from the last one. Learning curves go to
metrics/<model>/qat_steps.csv and qat_epochs.csv. A model that shall not or cannot be trained gets
models/<model>/qat/skipped.json, which says why. Several processes: `torchrun --nproc-per-node 2 stages/qat.py --model NAME`.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from octavo import cli
from octavo.errors import SourceError
from octavo.files import replace_dir, write_text
from octavo.graph.io import save
from octavo.layout import MODEL, checkpoint_dir, variant_dir
from octavo.manifest import as_exported, model_bytes, read_manifest, write_manifest
from octavo.params import load_model
from octavo.params.grammar import ModelSpec
from octavo.progress import advancing, say
from octavo.qat.outputs import made_of, skip, write_curves
from octavo.quantization.decisions import summary
from octavo.quantization.report import markdown

# Held-out images that the file must run on before it is accepted.
VERIFIED = 16


def main() -> None:
    """Parse, see whether there is anything to do, train, write."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("--restart", action="store_true", help="train anew, whatever is made or begun already")
    chosen = arguments.parse_args()
    spec = load_model(chosen.params, chosen.model)
    if not spec.qat.enabled:
        skip(chosen.model, "qat.enabled is not set in params.yaml", asked=False)
        return
    # Torch takes seconds to import: not for a model that is not trained.
    from octavo.qat.processes import processes

    with processes(spec.qat.device) as place:
        if chosen.restart and place.main:
            shutil.rmtree(checkpoint_dir(chosen.model), ignore_errors=True)
        place.wait()
        _train(chosen.model, spec, place, anew=chosen.restart)


def _train(name: str, spec: ModelSpec, place: Any, *, anew: bool) -> None:
    from octavo.qat.checked import checked
    from octavo.qat.inputs import begun
    from octavo.qat.run import train
    from octavo.quantization.qdq_decisions import qdq_decisions
    from octavo.sources.trainable import trainable

    reference, folder = variant_dir(name, "fp32"), variant_dir(name, "qat")
    manifest = read_manifest(reference)
    spec = as_exported(spec, manifest)
    found = begun(name, spec, manifest)
    if not anew and made_of(folder) == found.key:
        say(f"{folder}: made of these images and settings already (--restart trains anew)")
        return
    try:
        module = trainable(spec.source, reference / MODEL, manifest["image_input"], found.two())
        with advancing(f"training {name}") as progress, tempfile.TemporaryDirectory(prefix="octavo-") as scratch:
            settings = {"folder": checkpoint_dir(name), "scratch": Path(scratch), "key": found.key, "manifest": manifest}
            trained = train(module, spec, found.sets, found.start, found.reading, place=place, progress=progress, **settings)
    except SourceError as error:
        if spec.source.kind != "onnx":
            raise
        if place.main:
            skip(name, f"the graph cannot be trained in torch: {error.problem}", asked=True)
        return
    if trained is None:
        return  # another process writes
    with replace_dir(folder) as temporary:
        save(trained.model, temporary / MODEL)
        sizes = manifest["bytes"], model_bytes(temporary)
        paths = temporary / MODEL, reference / MODEL
        made = {"from_sha256": manifest["sha256"], "settings": spec.qat.model_dump(mode="json"), "key": found.key}
        made |= {"training": trained.record, "notes": trained.notes}
        made |= checked(trained, *paths, found.samples(VERIFIED), name=str(folder / MODEL), sizes=sizes, task=spec.task)
        written = write_manifest(temporary, name=name, variant="qat", spec=spec, image_input=manifest["image_input"], made=made)
        write_text(temporary / "report.md", markdown(written))
    write_curves(name, trained.rows)
    shutil.rmtree(checkpoint_dir(name), ignore_errors=True)
    for note in [*trained.notes, *(f"warning: {folder / MODEL}: {warning}" for warning in made["warnings"])]:
        say(note)
    precisions = summary(qdq_decisions(trained.model))
    say(f"{folder / MODEL}: {written['bytes'] / 1e6:.1f} MB, {made['size_ratio']:.0%} of FP32; {precisions}")
    say(f"{folder / MODEL}: {trained.told()}")


if __name__ == "__main__":
    cli.run(main)
