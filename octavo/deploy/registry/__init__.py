"""DVC and git as the model registry: versions as tags, released once nothing speaks against it, fetched whole or not at all."""
