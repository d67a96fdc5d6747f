"""FP32 to FP16 and INT8, with a reason on file for every node."""
