"""Tensors whose values come later: HF's loader casts, splits, joins and turns them, and what it did is noted.

HF's own loading code, its renames and conversions included, runs on them once, without a byte being read; each
parameter it makes can then be computed from the checkpoint when it is needed, by the same torch calls.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Read = Callable[[str, torch.dtype], Tensor]  # (name in the checkpoint, dtype) -> the tensor, rounded once


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint, in the dtype it is cast to before all else."""

    name: str
    dtype: torch.dtype

    def compute(self, read: Read) -> Tensor:
        return read(self.name, self.dtype)

    def sources(self) -> set[str]:
        """The tensors of the checkpoint that it is made of."""
        return {self.name}


@dataclass(frozen=True)
class Step:
    """A torch call on tensors that are themselves recipes; `part` of what it returned, where that was several."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    part: int | None

    def compute(self, read: Read) -> Tensor:
        args, kwargs = tree_map_only((Source, Step), lambda recipe: recipe.compute(read), (self.args, self.kwargs))
        found: Any = self.call(*args, **kwargs)
        value: Tensor = found if self.part is None else found[self.part]
        return value

    def sources(self) -> set[str]:
        """The tensors of the checkpoint that it is made of."""
        recipes = [each for each in tree_leaves((self.args, self.kwargs)) if isinstance(each, (Source, Step))]
        return {name for recipe in recipes for name in recipe.sources()}


Recipe = Source | Step
_SAME = frozenset([Tensor.detach, Tensor.requires_grad_])  # what making a parameter calls
T = TypeVar("T")


class Deferred(Tensor):
    """A tensor without values, with the recipe for them."""

    recipe: Recipe

    @staticmethod
    def of(recipe: Recipe, value: Tensor) -> "Deferred":
        """A deferred tensor of the shape and dtype of `value`."""
        made = Tensor._make_subclass(Deferred, value.to("meta"))
        made.recipe = recipe
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is Tensor.to:  # where it goes is decided when it is computed
            given = {name: value for name, value in given.items() if name != "device" and value is not None}
            args = tuple(each for each in args if not isinstance(each, (str, torch.device)))
            if len(args) == 1 and not given:
                return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **given)
        if func in _SAME:
            return found if isinstance(found, Deferred) else Deferred.of(args[0].recipe, found)
        if isinstance(found, Tensor):
            return Deferred.of(_recipe(func, args, given, None, found), found)
        if isinstance(found, (tuple, list)) and any(isinstance(each, Tensor) for each in found):
            return type(found)(Deferred.of(_recipe(func, args, given, i, each), each) for i, each in enumerate(found))
        return found


def _recipe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], part: int | None, found: Tensor) -> Recipe:
    own = args[0].recipe if args and isinstance(args[0], Deferred) else None
    if func is Tensor.to and isinstance(own, Source):
        return Source(own.name, found.dtype)
    named: Any = tree_map_only(Deferred, lambda each: each.recipe, (args, kwargs))
    return Step(func, named[0], named[1], part)


@dataclass(frozen=True)
class Slice:
    """What HF's loader takes for a tensor of an open file: indexed with ..., it gives the tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __getitem__(self, _everything: object) -> Deferred:
        return Deferred.of(Source(self.name, self.dtype), torch.empty(self.shape, dtype=self.dtype, device="meta"))
