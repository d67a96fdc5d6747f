"""Small named edits of an ONNX graph, one a file; each docstring numbers its rules, including when not to act.

A pass is an `onnx_ir.passes.InPlacePass`: `pass_(model)` edits the model and returns a PassResult; one that looks at nodes of one
op type is a `NodePass`. What onnx_ir's own `passes.common` does already (unused nodes, initializers among the inputs) is taken
from there.
"""
