"""Activations with tensors of their own, in plain torch: no kernel has them yet, so they are the same under all ops."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.specs.kinds import ACTIVATION_TENSORS


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """a x**2 + beta x above 0, and b (exp(x) - 1 - x) + beta x below (Huang & Schlag 2024, arXiv:2411.13010, eq. 8).

    Op by op as transformers.activations.XIELUActivation has it in Python; differentiable; float64 stays float64.

    Args:
        x: any shape, floating.
        alpha_p: [1], in x's dtype; a is its softplus.
        alpha_n: [1]; b is beta more than its softplus.
        beta: [], the slope at 0.
        eps: [], the exponential is taken of this at most.

    Returns:
        Shape and dtype of x.
    """
    above, below = F.softplus(alpha_p), beta + F.softplus(alpha_n)
    exponential = torch.expm1(torch.min(x, eps))
    return torch.where(x > 0, above * x * x + beta * x, (exponential - x) * below + beta * x)


FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {"xielu": xielu}


class Activation(nn.Module):
    """An activation of FUNCTIONS with its tensors, called as in ACTIVATION_TENSORS."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[name]
        for slot_name, slot in ACTIVATION_TENSORS[name].items():
            self.register_parameter(slot_name, nn.Parameter(torch.empty(slot.shape), requires_grad=slot.trained))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **dict(self.named_parameters()))
