"""Whether a module is what the spec speaks of: HuggingFace's own code, with the config's numbers, and nothing besides.

A kernel takes the place of a forward. One that somebody changed, by a subclass, another library's patch, another
activation or a hook on it, would be lost without a word; so such a module stays.
"""

from inspect import unwrap
from typing import Any

import torch
from torch import nn

from porter_kernels.glu import activation_reference

_OWN = ("transformers.", "torch.")
_EPS = ("variance_epsilon", "eps")
_CLOSE = 1e-5  # of activations between -4 and 4, in float32


def why_not_stock(module: nn.Module) -> str | None:
    """Why a module's forward is not HuggingFace's; None: it is."""
    kind: Any = type(module)
    if not f"{kind.__module__}.".startswith(_OWN):
        return f"{kind.__name__} is no class of HuggingFace's"
    where = getattr(unwrap(kind.forward), "__module__", None)
    if "forward" in vars(module) or not f"{where}.".startswith(_OWN):
        return f"the forward of {kind.__name__} is not HuggingFace's: {where if where else 'somebody'} set it"
    return None


def why_not_eps(module: nn.Module, eps: float) -> str | None:
    """Why a norm's eps is not the config's."""
    own = next((getattr(module, name) for name in _EPS if isinstance(getattr(module, name, None), float)), eps)
    return None if own == eps else f"its eps is {own:g}, the config says {eps:g}"


def why_not_activation(module: nn.Module, act: str) -> str | None:
    """Why an activation is not the one that the config names, found out by calling it, or must go on to be called."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "its activation has hooks, which would not be called"
    x = torch.linspace(-4, 4, 33, device="cpu")
    with torch.no_grad():
        found = module(x)
    want = activation_reference(x, act=act)
    return None if torch.allclose(found, want, rtol=0, atol=_CLOSE) else f"its activation is not the config's {act}"
