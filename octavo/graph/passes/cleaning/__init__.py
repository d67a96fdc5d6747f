"""What any reader of an ONNX file is better off without, and what later passes count on: names, shapes, opset, constants."""
