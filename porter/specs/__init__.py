"""Specs: a family is one YAML file, resolved against a config to a blueprint. No torch in here."""

from porter.specs.tree import builtin_spec_names, spec_folder

__all__ = ["builtin_spec_names", "spec_folder"]
