"""A user's own torch module as a side of a comparison: opened, its nodes named by a map file, run layer by layer."""
