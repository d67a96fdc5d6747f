"""ONNX Runtime's first look at what was fetched."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ModelRunError
from octavo.params.source import OTHER_EXPORTER, ExportedSource, Source
from octavo.runtime.session import Session

__all__ = ["loaded_session"]


def loaded_session(source: Source, model: Path, name: str) -> Session:
    """Open the graph that `octavo.sources.fetch` wrote.

    Args:
        source: where it comes from.
        model: the file to run.
        name: what errors call it.

    Raises:
        ModelRunError: it cannot be loaded; of a torch module's graph with the exporter that was not used as the way out.
    """
    try:
        return Session(model, name=name)
    except ModelRunError as error:
        if not isinstance(source, ExportedSource):
            raise
        # Written a moment ago, the file is not damaged: what ONNX Runtime lacks is this exporter's way to write the module.
        raise ModelRunError(
            error.problem, f"try `source.exporter: {OTHER_EXPORTER[source.exporter]}`, or another `source.opset`"
        ) from error
