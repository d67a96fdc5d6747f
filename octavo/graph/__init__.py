"""ONNX graphs: reading, writing, questions, and edits as small passes."""
