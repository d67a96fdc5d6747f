"""What leaves the pipeline: the manifest beside every model."""
