"""Small named edits of an ONNX graph, one a file; each docstring numbers its rules, including when not to act.

A pass is an `onnx_ir.passes.InPlacePass`: `pass_(model)` edits the model and returns a PassResult; one that looks at nodes of one
op type is a `NodePass`. What onnx_ir's own `passes.common` does already (unused nodes, initializers among the inputs) is taken
from there. The rooms, in the order in which their passes see a graph:

- `cleaning`: what any reader of an ONNX file is better off without;
- `spelled`: activations and norms that exporters spell out, as the one operator that they are;
- `affine`: factors, shifts and norms, taken into the layers beside them;
- `forms`: other operators in the form that integer kernels exist for;
- `kernels`: exact rewrites of Q/DQ graphs for the kernels that ONNX Runtime has.
"""
