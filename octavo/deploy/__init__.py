"""What leaves the pipeline: complete packages, the loader, embeddings on the wire (codec/), versions (registry/)."""
