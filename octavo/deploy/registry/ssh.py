"""SSH remotes whose host is known: DVC's own file system (dvc-ssh 4.3 over sshfs) takes any host's key.

sshfs asks asyncssh for `known_hosts=None`, which turns the check off, and .dvc/config has no setting for it. A host that stands in
for the real one would be given all models, and could hand out others.
"""

from __future__ import annotations

from typing import Any

from dvc_ssh import SSHFileSystem

__all__ = ["KnownHostsFileSystem"]


class KnownHostsFileSystem(SSHFileSystem):
    """DVC's, with the host's key held against ~/.ssh/known_hosts, or the `UserKnownHostsFile` of ~/.ssh/config."""

    def _prepare_credentials(self, **config: Any) -> dict[str, Any]:
        # Empty: what OpenSSH's own files say (asyncssh.connect).
        return {**super()._prepare_credentials(**config), "known_hosts": ()}
