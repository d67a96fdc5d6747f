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
        beside: the folder that the comment lies in: references are relative to it, unless one of these is given.
        url: of the folder, where a browser gets each file by its name.
        archive: of a page that offers the folder as one archive, as CI services do: pictures are named and linked, not shown.
    """

    folder: Path
    beside: Path = Path()
    url: str | None = None
    archive: str | None = None

    def show(self, name: str, content: bytes, words: str) -> str:
        """Write a file, whole or not at all, and return the Markdown that shows it.

        Args:
            name: with what is odd in it made plain.
            words: in place of the picture; what would be Markdown in them is left out.

        Raises:
            OutputError: the file cannot be written.
        """
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".")
        words = "".join(letter if letter.isalnum() or letter in "._-,: " else " " for letter in words)
        with replace_file(self.folder / name) as temporary:
            temporary.write_bytes(content)
        if self.archive is not None:
            return f"[{words}: {name}]({self.archive})"
        if self.url is not None:
            return f"![{words}]({self.url.rstrip('/')}/{quote(name)})"
        return f"![{words}]({quote(Path(os.path.relpath(self.folder / name, self.beside)).as_posix())})"
