"""What can be told of somebody's own model and images before anything runs through the pipeline: facts, and guesses called so."""
