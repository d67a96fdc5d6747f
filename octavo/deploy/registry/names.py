"""The model registry: artifacts in dvc.yaml, whose versions are git tags by GTO's rules (`road-int8@v1.0.0`).

Nothing of dvc or gto is imported before it is used: a service reads this room without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scmrepo.git import Git

__all__ = ["Version", "is_version", "registered", "tag_name", "versions"]


@dataclass(frozen=True)
class Version:
    """A registered version of an artifact.

    Attributes:
        name: `v1.0.0`.
        commit: 40 hex digits.
        active: false where it was withdrawn again (`gto deprecate`).
    """

    name: str
    commit: str
    active: bool


def tag_name(artifact: str, version: str) -> str:
    """The git tag that registers a version."""
    return f"{artifact}@{version}"


def is_version(text: str) -> bool:
    """Whether GTO takes it: `v` and a semantic version, `v1.0.0` or `v1.1.0-rc.1`."""
    from gto.versions import SemVer

    return bool(text) and SemVer.is_valid(text)


def versions(git: Git, artifact: str) -> list[Version]:
    """All versions of an artifact, the highest first."""
    from gto.registry import GitRegistry

    with GitRegistry.from_url(git) as registry:
        found = registry.find_artifact(artifact, create_new=True).get_versions(active_only=False)
    return [Version(one.version, one.commit_hexsha, one.is_active) for one in found if one.is_registered]


def registered(git: Git) -> list[str]:
    """Names of the artifacts that have a version."""
    from gto.registry import GitRegistry

    with GitRegistry.from_url(git) as registry:
        return sorted(registry.get_artifacts())
