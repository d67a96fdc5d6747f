"""The grammar of params.yaml: `load` reads the file, `grammar` says what may stand in it."""

from octavo.params.load import load, load_model, load_sets

__all__ = ["load", "load_model", "load_sets"]
