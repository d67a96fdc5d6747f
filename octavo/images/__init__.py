"""From files to tensors: decoding, preprocessing, datasets and splits."""
