"""A model's sizes without its weights: a size of a family, with fewer layers where asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from porter.errors import UsageError
from porter.specs.blueprint import Blueprint
from porter.specs.family import Family, find_model
from porter.specs.resolve import resolve

COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


@dataclass(frozen=True)
class Shape:
    """A model's sizes, as a config.json has them.

    Attributes:
        name: of the size, gemma-7b.
        family: whose spec it is.
        config: with the number of layers that was asked for.
    """

    name: str
    family: Family
    config: Mapping[str, Any]

    @property
    def blueprint(self) -> Blueprint:
        return resolve(self.family, self.config).blueprint

    @property
    def title(self) -> str:
        """The name, and the layers where the size has another number."""
        layers = self.blueprint.dims.layers
        whole = resolve(self.family, self.family.size(self.name).config).blueprint.dims.layers
        name = f"{self.family.name} tiny" if self.name == "tiny" else self.name
        return name if layers == whole else f"{name}, {layers} of {whole} layers"


def find_shape(name: str, size: str | None = None, layers: int | None = None) -> Shape:
    """The sizes of a model: a size, a family with `size`, or the path of a spec.

    Args:
        layers: in place of the size's own.

    Raises:
        SpecError: nothing is called so.
        UsageError: the number of layers is none that it can have.
    """
    family, found = find_model(name, size)
    found = found or family.default_size
    config = dict(family.size(found).config)
    if layers is not None:
        key = next((each for each in COUNTS if each in config), None)
        if layers < 1 or key is None:
            raise UsageError(f"--layers {layers}", "1 or more", "Leave it out for the layers of the size.")
        config[key] = layers
        for kinds in ("layer_types", "mlp_layer_types"):
            if isinstance(config.get(kinds), list):
                config[kinds] = (config[kinds] * layers)[:layers]
    return Shape(found, family, config)
