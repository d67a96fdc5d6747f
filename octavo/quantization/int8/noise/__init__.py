"""How far INT8 is from FP32 at the heads: a whole network, single roundings, and what is asked for."""
