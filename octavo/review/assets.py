"""The folder of pictures beside the comment, and how the comment points there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from octavo.files import replace_file

__all__ = ["Assets"]


@dataclass(frozen=True)
class Assets:
    """Where pictures go.

    Attributes:
        folder: on this machine.
        url: of the folder, where the comment's readers find it; None where `beside` is enough.
        beside: the folder that the comment lies in: references are relative to it.
    """

    folder: Path
    url: str | None
    beside: Path

    def keep(self, name: str, content: bytes) -> str:
        """Write a file, whole or not at all, and return what the comment says of it.

        Args:
            name: with what is odd in it made plain.
        """
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".")
        with replace_file(self.folder / name) as temporary:
            temporary.write_bytes(content)
        if self.url is not None:
            return f"{self.url.rstrip('/')}/{quote(name)}"
        return quote(Path(os.path.relpath(self.folder / name, self.beside)).as_posix())
