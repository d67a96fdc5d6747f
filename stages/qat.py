"""Make models/<model>/qat: INT8 by quantization-aware training (`qat.enabled: true`), from FP32's weights and calibration's ranges.

Trains on `data.train`: by its labels and towards FP32's answers, or by these alone where it has none. Checkpoints lie in
models/<model>/.qat until the run is done; a run that was killed goes on from the last one. Learning curves go to
metrics/<model>/qat_steps.csv and qat_epochs.csv. A model that shall not or cannot be trained gets
models/<model>/qat/skipped.json, which says why. Several processes: `torchrun --nproc-per-node 2 stages/qat.py --model NAME`.
"""

import shutil
from typing import Any

from octavo import cli
from octavo.deploy.manifest import model_bytes, read_manifest, write_manifest
from octavo.errors import SourceError
from octavo.files import read_json, replace_dir, write_csv, write_json, write_text
from octavo.graph.io import save
from octavo.layout import MANIFEST, MODEL, SKIPPED, checkpoint_dir, metrics_dir, variant_dir
from octavo.params import load_model
from octavo.params.grammar import ModelSpec
from octavo.progress import advancing, say
from octavo.quantization.decisions import summary
from octavo.quantization.report import markdown

CURVES = {"steps": ["step", "loss", "learning_rate"], "epochs": ["step", "metric", "loss"]}
# Images that the file must run on before it is accepted.
VERIFIED = 4


def main() -> None:
    """Parse, see whether there is anything to do, train, write."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("--restart", action="store_true", help="train anew, whatever is made or begun already")
    chosen = arguments.parse_args()
    spec = load_model(chosen.params, chosen.model)
    if not spec.qat.enabled:
        _skip(chosen.model, "qat.enabled is not set in params.yaml")
        return
    # Torch takes seconds to import: not for a model that is not trained.
    from octavo.qat.processes import processes

    with processes(spec.qat.device) as place:
        if chosen.restart and place.main:
            shutil.rmtree(checkpoint_dir(chosen.model), ignore_errors=True)
        place.wait()
        _train(chosen.model, spec, place, anew=chosen.restart)


def _train(name: str, spec: ModelSpec, place: Any, *, anew: bool) -> None:
    from octavo.qat.checked import checked, decisions
    from octavo.qat.inputs import begun
    from octavo.qat.run import train
    from octavo.sources.trainable import trainable

    reference, folder = variant_dir(name, "fp32"), variant_dir(name, "qat")
    manifest = read_manifest(reference)
    found = begun(name, spec, manifest)
    if not anew and _made(folder) == found.key:
        say(f"{folder}: made of these images and settings already (--restart trains anew)")
        return
    try:
        module = trainable(spec.source, reference / MODEL, manifest["image_input"])
    except SourceError as error:
        if spec.source.kind != "onnx":
            raise
        _skip(name, f"the graph cannot be trained in torch: {error.problem}")
        return
    with advancing(f"training {name}") as progress, replace_dir(folder) as temporary:
        trained = train(
            module,
            spec,
            found.sets,
            found.start,
            place=place,
            folder=checkpoint_dir(name),
            scratch=temporary,
            key=found.key,
            manifest=manifest,
            progress=progress,
        )
        if trained is None:
            raise SystemExit  # another process writes
        save(trained.model, temporary / MODEL)
        sizes = manifest["bytes"], model_bytes(temporary)
        samples = found.samples(VERIFIED)
        made = {
            "from_sha256": manifest["sha256"],
            "settings": spec.qat.model_dump(mode="json"),
            "key": found.key,
            "training": trained.record,
            **checked(trained, temporary / MODEL, reference / MODEL, samples, name=str(folder / MODEL), sizes=sizes, spec=spec),
        }
        written = write_manifest(temporary, name=name, variant="qat", spec=spec, image_input=manifest["image_input"], made=made)
        write_text(temporary / "report.md", markdown(written))
    _write_curves(name, trained.rows)
    shutil.rmtree(checkpoint_dir(name), ignore_errors=True)
    for note in [*trained.notes, *(f"warning: {folder / MODEL}: {warning}" for warning in made["warnings"])]:
        say(note)
    say(f"{folder / MODEL}: {written['bytes'] / 1e6:.1f} MB, {made['size_ratio']:.0%} of FP32; {summary(decisions(trained.model))}")
    say(f"{folder / MODEL}: {trained.told()}")


def _made(folder: Any) -> dict[str, str] | None:
    """What the variant there was made of; None where there is none."""
    return read_json(folder / MANIFEST)["made"].get("key") if (folder / MANIFEST).is_file() else None


def _skip(name: str, reason: str) -> None:
    with replace_dir(variant_dir(name, "qat")) as folder:
        write_json(folder / SKIPPED, {"reason": reason})
    _write_curves(name, {curve: [] for curve in CURVES})
    say(f"{variant_dir(name, 'qat')}: not trained: {reason}")


def _write_curves(name: str, rows: dict[str, list[dict[str, float]]]) -> None:
    for curve, columns in CURVES.items():
        write_csv(metrics_dir(name) / f"qat_{curve}.csv", rows[curve], columns)


if __name__ == "__main__":
    cli.run(main)
