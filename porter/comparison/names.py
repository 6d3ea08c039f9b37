"""What names of nodes say: layers.3.attn.ctx, grad:layers.3.attn.q.weight."""

from typing import Literal

NodeKind = Literal["observable", "gauge"]
StageName = Literal["preflight", "exact", "semantics", "precision", "gradients", "behaviour"]
GRADIENT = "grad:"  # in front of a node's or parameter's name
GAUGES = frozenset(
    [
        "attn.q",
        "attn.k",
        "attn.v",
        "attn.q_norm",
        "attn.k_norm",
        "attn.q_rope",
        "attn.k_rope",
        "mlp.gate",
        "mlp.up",
        "moe.shared.gate",
        "moe.shared.up",
    ]
)


def place_in_unit(name: str) -> str:
    """attn.ctx for layers.3.attn.ctx, and for a gradient of it; outside layers the name itself."""
    place = name.removeprefix(GRADIENT)
    return place.split(".", 2)[2] if place.startswith("layers.") else place


def kind_of(name: str) -> NodeKind:
    """A gauge may differ in a right port, where heads are permuted say; it warns at most."""
    return "gauge" if place_in_unit(name) in GAUGES else "observable"


def full_name(unit: str, node: str) -> str:
    """layers.3.attn.ctx for attn.ctx of layers.3; nodes of other units are called so already."""
    return f"{unit}.{node}" if unit.startswith("layers.") else node
