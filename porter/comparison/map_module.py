"""porter map: a map file for a user's module, drafted by comparing it with the reference on one prompt."""

import torch
from torch import nn

from porter.comparison.preflight import load_tokenizer
from porter.comparison.prompts import read_prompts
from porter.comparison.request import find_build
from porter.errors import UsageError
from porter.models.build import Build
from porter.models.choices import pick_device
from porter.references.hf import HfReference
from porter.references.user_module.code import Opening, UserModule, split_target
from porter.references.user_module.draft import Draft, Drafter
from porter.specs.blueprint import Blueprint

TOKENS = 47


def map_module(
    module: str | nn.Module,
    model: str | Build | None = None,
    *,
    reference: str = "hf",
    size: str | None = None,
    weights: str | None = None,
    device: str | None = None,
) -> tuple[Draft, Build]:
    """The draft of a map, and the build whose checkpoint it was drafted on.

    Args:
        module: pkg.mod:fn, with module: or without, or a module.
        model: a build, its name, a size, a family or a path to a YAML; None: the build just made.

    Raises:
        PorterError: the module cannot be opened or run, or does not hold the checkpoint's weights.
    """
    if reference != "hf":
        raise UsageError(f"--reference {reference!r}", "hf", "Leave it out.")
    if isinstance(module, str):
        split_target(module)
    build = find_build(model, size, weights, (), None, None, device)
    at, folder = torch.device(pick_device(build.device)), build.checkpoint()
    own = UserModule(module)
    opened = own.open(Opening(folder, build.config, torch.float32, at))
    blueprint = build.reference_blueprint
    prompt = read_prompts(blueprint, load_tokenizer(folder), None, None, clear_length(blueprint))[0]
    hf = HfReference(blueprint, folder, torch.float32, at)
    return Drafter(own.name, opened, blueprint, build.reader(), hf).draft(torch.tensor([prompt.ids])), build


def clear_length(blueprint: Blueprint) -> int:
    """A number of tokens that no other axis of a tensor has, so that the axis of tokens is known by its length."""
    sizes = set(blueprint.dims.model_dump().values()) | {1}
    return next(length for length in range(TOKENS, TOKENS + 100) if length not in sizes)
