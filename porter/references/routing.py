"""Which experts HF's routers choose: noted as they choose, and, where wanted, replaced by another model's choice.

Routers choose by torch.topk over the experts of each token, after one over groups where there are any; a router that is
given a choice weighs it by its own scores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_TOPK = frozenset([torch.topk, Tensor.topk])


class HasChosen(Exception):
    """Ends a forward pass whose router has chosen."""


class Routing(TorchFunctionMode):
    """Within it, the choices of one layer's router are noted, and what it chose experts by.

    Attributes:
        own: what it chose: groups where the model has any, then experts, [tokens, …] each.
    """

    def __init__(self, pinned: Sequence[Tensor | None] = (), stop_after: int = 0) -> None:
        """
        Args:
            pinned: taken instead, in that order; None, or none that is left: what it chose.
            stop_after: so many choices end the pass with HasChosen; 0: none do.
        """
        super().__init__()
        self.pinned, self.stop_after, self.own = pinned, stop_after, list[Tensor]()
        self.scores = torch.empty(0)  # what was chosen by, the last time

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _TOPK or found.indices.ndim != 2:  # of more axes: the scores of groups, not a choice
            return found
        self.own.append(found.indices)
        self.scores = args[0].detach()
        if len(self.own) == self.stop_after:
            raise HasChosen
        pinned = self.pinned[len(self.own) - 1] if len(self.own) <= len(self.pinned) else None
        if pinned is None:
            return found
        return torch.return_types.topk((args[0].gather(-1, pinned), pinned))
