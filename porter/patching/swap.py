"""A module's class exchanged for one that computes the same, fused; its tensors, children and hooks stay as they are.

A subclass of the module's own class takes its place, so isinstance, state dicts, repr and what looks for a class by
name go on to work, and the original class object comes back when the patch is taken out.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from torch import nn

PREFIX = "Porter"
_Settings = tuple[tuple[str, Any], ...]


class Fused:
    """A mark of classes that took the place of another, and how they are pickled and copied: as what made them.

    Attributes:
        original: the class whose place it took.
    """

    original: type[nn.Module]
    _made_of: tuple[type["Mixin"], _Settings]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _empty, (type(self).original, *type(self)._made_of), self.__dict__


class Mixin(Protocol):
    """The forward of a fused class."""

    @staticmethod
    def attributes(original: type[nn.Module], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the class has, made of the settings."""


class Plain:
    """A mixin whose settings are its attributes."""

    @staticmethod
    def attributes(original: type[nn.Module], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return settings


def fuse(module: nn.Module, mixin: type[Mixin], **settings: Any) -> None:
    """Gives a module the forward of `mixin`."""
    original: Any = type(module)
    module.__class__ = _fused_class(original, mixin, tuple(settings.items()))


def restore(module: nn.Module) -> None:
    """Gives a module its own class back."""
    kind = type(module)
    if issubclass(kind, Fused):
        module.__class__ = kind.original


def can_restore(module: nn.Module) -> bool:
    """Whether a module's class is the one that was made for it, not a class made of that one."""
    return "_made_of" in vars(type(module))


def is_fused(module: nn.Module) -> bool:
    return isinstance(module, Fused)


def fused_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every module whose class was exchanged, by path."""
    return ((path, module) for path, module in model.named_modules() if is_fused(module))


@cache
def _fused_class(original: Any, mixin: type[Mixin], settings: _Settings) -> type[nn.Module]:
    """One class for all modules that are alike, so that torch.compile sees one.

    It says that it lies in the file of the class whose place it took: HuggingFace looks for functions there.
    """
    own = {"original": original, "_made_of": (mixin, settings), "__module__": original.__module__}
    bases: Any = (mixin, Fused, original)
    made: type[nn.Module] = type(
        f"{PREFIX}{original.__name__}", bases, own | {**mixin.attributes(original, dict(settings))}
    )
    return made


def _empty(original: Any, mixin: type[Mixin], settings: _Settings) -> nn.Module:
    """A module of the class that these make, to be filled."""
    kind = _fused_class(original, mixin, settings)
    return kind.__new__(kind)
