"""Tensors beside the projections, by their shapes and names: sinks, norms of single heads, activations' own, biases."""

import re

from porter.explanation.draft.layout import Layout
from porter.explanation.draft.roles import Roles
from porter.specs.kinds import ACTIVATION_TENSORS

_HEAD_NORMS = {"attn.q_norm": r"(^|[._])q(_|uery)", "attn.k_norm": r"(^|[._])k(_|ey)"}


def add_vectors(roles: Roles, layout: Layout, heads: int | None) -> None:
    """Gives roles to what is no projection and no norm of the stream, in place.

    Args:
        heads: of the queries, as the config says.
    """
    modules = layout.modules()
    for name, tensors in modules.items():
        bare = tensors.get("")
        if bare is not None and len(bare) == 1 and bare[0] == heads and "attn" in name and "bias" not in name:
            roles.slots["attn.sinks"] = f"{name}!"
        for slot, words in _HEAD_NORMS.items() if name.endswith("{h}") else ():
            if re.search(words, name):
                roles.slots[slot] = name
    owner = activation_of(layout)
    if owner is not None:
        roles.slots["mlp.act"], roles.facts["mlp.act"] = owner
    roles.left = [name for name in roles.left if name not in {each.rstrip("!") for each in roles.slots.values()}]


def activation_of(layout: Layout) -> tuple[str, str] | None:
    """The module whose tensors are those of an activation, and the activation; None: there is none."""
    modules = layout.modules()
    owners = {name.rpartition(".")[0] for name, tensors in modules.items() if "" in tensors}
    for owner in sorted(owners):
        names = {name.rpartition(".")[2] for name in modules if name.rpartition(".")[0] == owner}
        for activation, slots in ACTIVATION_TENSORS.items():
            if names == set(slots):
                return owner, activation
    return None


def bias_beside(layout: Layout, module: str) -> str | None:
    """A module's bias that is a tensor by itself, dense_bias beside dense; None: there is none."""
    return f"{module}_bias" if "" in layout.modules().get(f"{module}_bias", {}) else None


def layers_with_bias(layout: Layout, *modules: str | None) -> tuple[bool, ...]:
    """For each layer, whether one of these modules has a bias in it."""
    names = {f"{module}.bias" for module in modules if module} | {f"{module}_bias" for module in modules if module}
    having = {i for name in names for i in layout.having.get(name, ())}
    return tuple(i in having for i in range(layout.num_layers))


def layers_of(layout: Layout, *modules: str | None) -> tuple[bool, ...]:
    """For each layer, whether it has one of these modules at all: layers of experts have no dense projections."""
    having = {i for module in modules if module for i in layout.having.get(f"{module}.weight", ())}
    return tuple(i in having for i in range(layout.num_layers))
