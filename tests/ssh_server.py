"""A real SSH server with SFTP on loopback, keys alone: what an `ssh://` remote of DVC talks to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh

__all__ = ["SshServer", "new_key", "ssh_server"]

USER = "octavo"


@dataclass(frozen=True)
class SshServer:
    """Where it listens, and who it is.

    Attributes:
        port: on 127.0.0.1.
        known_hosts: the line that names its key.
        url: of a folder that is there and can be written.
    """

    port: int
    known_hosts: str
    url: str


def new_key(path: Path) -> str:
    """Write a private key; the public one, as in authorized_keys."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(path)
    path.chmod(0o600)
    return key.export_public_key().decode()


@contextmanager
def ssh_server(folder: Path, authorized: str) -> Iterator[SshServer]:
    """Serve `folder` as the root of all paths, with `store` in it, to who holds the key of that public one."""
    (folder / "store").mkdir(parents=True)
    (folder / "locked").write_text("a file stands where a folder was meant")
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    loop = asyncio.new_event_loop()

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(authorized),
            password_auth=False,
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(folder)),
            allow_scp=False,
        )

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    acceptor = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    port = acceptor.get_port()
    public = host_key.export_public_key().decode().strip()
    try:
        yield SshServer(port, f"[127.0.0.1]:{port} {public}\n", f"ssh://{USER}@127.0.0.1:{port}/store")
    finally:

        async def close() -> None:
            acceptor.close()
            await acceptor.wait_closed()

        asyncio.run_coroutine_threadsafe(close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
