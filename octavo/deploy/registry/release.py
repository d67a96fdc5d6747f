"""Give a model's package and each variant in it a version, once nothing speaks against it: annotated git tags, all or none.

Nothing is pushed: that is for whoever releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.deploy.artifact import PACKAGE
from octavo.deploy.registry.committed import clean_commit
from octavo.deploy.registry.names import is_version, tag_name, versions
from octavo.deploy.registry.stored import declared, pushed, reproduced, stage_of
from octavo.errors import ParamsError, RegistryError
from octavo.layout import MANIFEST, VARIANTS, artifact_name, variant_dir
from octavo.manifest import read_manifest
from octavo.params import load_model
from octavo.params.recipe import Gates
from octavo.verdicts import FAIL, PASS, verdict

if TYPE_CHECKING:
    from dvc.repo import Repo
    from scmrepo.git import Git

__all__ = ["Release", "plan", "tag"]


@dataclass(frozen=True)
class Release:
    """A version that may be released.

    Attributes:
        version: `v1.0.0`.
        commit: that the tags name.
        artifacts: name to its tag's message; the package first.
        notes: what speaks not against it, but should be known.
    """

    version: str
    commit: str
    artifacts: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def tags(self) -> list[str]:
        """Git's tags, in the order of `artifacts`."""
        return [tag_name(artifact, self.version) for artifact in self.artifacts]


def plan(model: str, version: str, *, params: str | Path = "params.yaml", remote: str | None = None) -> Release:
    """Check everything, change nothing.

    Args:
        model: a key of params.yaml.
        version: `v1.0.0`.
        params: the parameters; the project's folder is the working directory.
        remote: the DVC remote that must hold the package; None takes the default.

    Raises:
        ParamsError: no such model; a version that GTO does not take.
        SourceError: a model is not the one that its manifest describes.
        RegistryError: the version exists, the tree is dirty, the package is not up to date, not in the remote or not in dvc.yaml,
            or a gate failed.
    """
    spec = load_model(params, model)
    _check_version(version)
    commit = clean_commit()
    with _dvc() as repo:
        reproduced(repo, model)
        manifests = _manifests(model)
        paths = {artifact_name(model): variant_dir(model, PACKAGE)}
        paths |= {artifact_name(model, variant): variant_dir(model, PACKAGE) / variant for variant in manifests}
        notes = _check_free(repo.scm, list(paths), version, commit)
        notes += _check_gates(model, manifests, spec.validation.gates.of_task(spec.task.name))
        entries = declared(repo, {name: path.as_posix() for name, path in paths.items()})
        unmade = [variant for variant in VARIANTS if artifact_name(model, variant) in entries and variant not in manifests]
        notes += [
            f"{artifact_name(model, variant)} is in dvc.yaml and not in the package: it gets no version" for variant in unmade
        ]
        notes += pushed(repo, model, remote)
    lines = {variant: headline(variant, manifest) for variant, manifest in manifests.items()}
    messages = {artifact_name(model): f"{model} {version}\n\n" + "\n".join(lines.values())}
    messages |= {artifact_name(model, variant): f"{model} {variant} {version}\n\n{line}" for variant, line in lines.items()}
    return Release(version, commit, messages, tuple(notes))


def tag(release: Release) -> None:
    """Make the tags; where one cannot be made, those before it are removed again.

    Raises:
        RegistryError: git or GTO refuses a tag; there is none then, but those that the message names because git keeps them.
    """
    from gto.exceptions import GTOException
    from gto.registry import GitRegistry
    from gto.tag import delete_tag
    from scmrepo.exceptions import SCMError

    with _dvc() as repo, GitRegistry.from_url(repo.scm) as registry:
        made: list[str] = []
        try:
            for artifact, message in release.artifacts.items():
                registry.register(artifact, rev=release.commit, version=release.version, message=message, simple=True)
                made.append(tag_name(artifact, release.version))
        except BaseException as error:
            # An interrupted release, too, leaves no half of a version.
            kept = []
            for name in made:
                try:
                    delete_tag(repo.scm, name)
                except (GTOException, SCMError, OSError):
                    kept.append(name)
            if kept:
                raise RegistryError(
                    f"{type(error).__name__}: {error}; nor could what was made be removed: {', '.join(kept)}",
                    f"`git tag -d {' '.join(kept)}`, then release again",
                ) from error
            raise


def headline(variant: str, manifest: Mapping[str, Any]) -> str:
    """One line of a tag's message: what was kept, how large, how fast, what the gates say."""
    accuracy, parts = manifest.get("accuracy", {}), []
    metric = accuracy.get("metric")
    if metric in accuracy:
        parts.append(f"{metric} {accuracy[metric]:.3f}")
    if "retained" in accuracy:
        parts.append(f"kept {accuracy['retained']:.3f} [{accuracy['retained_low']:.3f}, {accuracy['retained_high']:.3f}]")
    elif "cosine_mean" in accuracy:
        parts.append(f"cosine {accuracy['cosine_mean']:.4f}")
    elif "agreement" in accuracy:
        parts.append(f"agreement {accuracy['agreement']:.4f}")
    parts.append(f"{manifest['bytes'] / 1e6:.2f} MB")
    timed = [one for one in manifest.get("latency", {}).get("figures", ()) if one["batch"] == 1 and one["size"] is None]
    if timed:
        best = min(timed, key=lambda one: one["median_ms"])
        gain = f", {best['speedup']:.2f}x FP32" if variant != "fp32" else ""
        host = manifest["latency"]["host"]["id"]
        parts.append(f"{best['median_ms']:.2f} ms{gain} ({best['provider']}, {best['threads']} threads, host {host})")
    gates = manifest.get("gates", {})
    open_ = [f"{gate} {verdict}" for gate, verdict in sorted(gates.items()) if verdict != "pass"]
    parts += [f"gates: {', '.join(open_) or 'pass'}"] if gates else []
    return f"{variant}: {'; '.join(parts)}"


def _check_version(version: str) -> None:
    if not is_version(version):
        parts = re.fullmatch(r"[vV]?(\d+)(?:\.(\d+))?(?:\.(\d+))?", version)
        near = f"did you mean v{'.'.join(str(int(part or 0)) for part in parts.groups())}? " if parts else ""
        raise ParamsError(f"{version!r} is no version", f"{near}versions are v<major>.<minor>.<patch>, v1.0.0 or v1.1.0-rc.1")


def _check_free(git: Git, artifacts: list[str], version: str, commit: str) -> list[str]:
    taken = [name for name in (tag_name(artifact, version) for artifact in artifacts) if name in git.list_tags()]
    package = versions(git, artifacts[0])
    if taken:
        raise RegistryError(
            f"{version} exists already: {', '.join(taken)}",
            f"take a version above {package[0].name if package else version}; a version that somebody may have is never moved",
        )
    for artifact in artifacts:
        for one in versions(git, artifact):
            if one.commit == commit:
                raise RegistryError(
                    f"this commit is {artifact} {one.name} already: a commit has one version",
                    "commit what is new before you release it",
                )
    from gto.versions import SemVer

    higher = [one.name for one in package if one.active and SemVer(one.name) > SemVer(version)]
    # For a fix of an older line. Who fetches without a version gets the highest, whenever it was made.
    return [f"{version} is below {higher[0]}, which is what is fetched where no version is named"] if higher else []


def _manifests(model: str) -> dict[str, dict[str, Any]]:
    """The manifests of the package's variants."""
    folder = variant_dir(model, PACKAGE)
    found = {variant: read_manifest(folder / variant) for variant in VARIANTS if (folder / variant / MANIFEST).is_file()}
    if not found:
        raise RegistryError(f"{folder} holds no variant", f"`dvc repro -f {stage_of(model)}`")
    return found


def _check_gates(model: str, manifests: Mapping[str, Mapping[str, Any]], bounds: Gates) -> list[str]:
    failed, notes = [], []
    for variant, manifest in manifests.items():
        for gate, answer in sorted(manifest.get("gates", {}).items()):
            one = verdict(variant, gate, answer, manifest.get("accuracy", {}), bounds)
            if one.answer == FAIL:
                failed.append(str(one))
            elif one.answer != PASS:
                notes.append(str(one))
    if failed:
        raise RegistryError(
            f"validation found {model} wanting:" + "".join(f"\n  {line}" for line in failed),
            "improve the variant (docs/int8.md, docs/qat.md), or take it out of `validate.gates.variants`; "
            f"then `dvc repro {stage_of(model)}`, commit, push",
        )
    return notes


@contextmanager
def _dvc() -> Iterator[Repo]:
    """The project in this folder; errors of DVC, GTO and git become one message."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from gto.exceptions import GTOException
    from scmrepo.exceptions import SCMError

    try:
        with Repo(".") as repo:
            if not Path.cwd() == Path(repo.root_dir).resolve() == Path(repo.scm.root_dir).resolve():
                raise RegistryError(
                    f"this folder is not both DVC's root ({repo.root_dir}) and git's ({repo.scm.root_dir})",
                    "release from the project's folder; a project in a subfolder of a git repository cannot be released",
                )
            yield repo
    except (DvcException, GTOException, SCMError, OSError) as error:
        raise RegistryError(f"{type(error).__name__}: {error}", "mend that, then release again; no tag was made") from error
