"""porter specs draft: a family file for a checkpoint that no family describes."""
