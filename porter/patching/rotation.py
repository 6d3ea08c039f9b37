"""HF's rotation of queries and keys on porter's kernel.

Each of HF's attention classes calls a function of its modeling file, apply_rotary_pos_emb. In a patched attention that
one name means the kernel; the function itself stays what it is for every other model. What the function computes, and
how the tables lie that it is given, is found out by calling it: names do not say it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import product
from types import CellType, CodeType, FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from porter.patching.swap import fuse
from porter.specs.rope import Rope
from porter.specs.schema import Dims
from porter_kernels.rope import Style, rope, rope_reference

Doubled = Literal["halves", "pairs", "no"]
Rotate = Callable[..., tuple[Tensor, Tensor]]
_PREFIX = "apply_rotary"
_CLOSE = 1e-5  # of numbers near 1, in float32


@dataclass(frozen=True)
class Rotation:
    """What one of HF's functions computes.

    Attributes:
        doubled: how its tables say each frequency twice, if they do.
        negated: it turns the other way.
    """

    style: Style
    doubled: Doubled
    negated: bool

    def tables(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [1 or B, T, R / 2] for the kernel, of HF's; views, unless it turns the other way."""
        cos, sin = (_once(table, self.doubled) for table in (cos, sin))
        return cos, -sin if self.negated else sin


class FusedRotation:
    """An attention whose forward is HF's own but for the functions that rotate."""

    @staticmethod
    def attributes(original: type[nn.Module], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its forward."""
        forward = _forward_of(original)
        functions = dict(_named_globals(forward))
        meaning = {name: _fused(functions[name], rotation) for name, rotation in settings["rotations"]}
        return {"forward": _rebound(forward, meaning)}


def rotations_of(attention: nn.Module, spec: Rope, dims: Dims) -> dict[str, Rotation] | str:
    """The functions by which an attention rotates, and what each computes; or why no kernel can take their place."""
    found, reasons = {}, []
    for name, function in _named_globals(_forward_of(type(attention))):
        rotation = _study(function, spec, dims)
        if isinstance(rotation, Rotation):
            found[name] = rotation
        else:
            reasons.append(f"{name} {rotation}")
    return "; ".join(reasons) or found or "its forward calls no function that rotates"


def fuse_rotation(attention: nn.Module, found: Mapping[str, Rotation]) -> None:
    """Puts the kernel in the place of the functions named, in one attention."""
    fuse(attention, FusedRotation, rotations=tuple(found.items()))


# --- what a function computes ------------------------------------------------------------------


def _study(function: Rotate, spec: Rope, dims: Dims) -> Rotation | str:
    """What a function computes, found out on three positions in float32; or why no kernel computes it."""
    names = tuple(inspect.signature(function).parameters)
    if names[:4] != ("q", "k", "cos", "sin"):
        return f"takes {', '.join(names)}, not queries and keys together"
    R = spec.width(dims.head_dim)
    generator = torch.Generator("cpu").manual_seed(0)
    for K, (style, doubled, negated) in product(dict.fromkeys((dims.head_dim, R)), _candidates(spec)):
        q_BHTK, k_BGTK = (torch.randn(1, heads, 3, K, generator=generator, device="cpu") for heads in (2, 1))
        angles = torch.randn(1, 3, R // 2, generator=generator, device="cpu")  # HF makes models on the meta device
        rotation = Rotation(style, doubled, negated)
        try:
            got = function(q_BHTK, k_BGTK, *(_twice(table, doubled) for table in (angles.cos(), angles.sin())))
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # its tables are of another width
        sin = -angles.sin() if negated else angles.sin()
        want = rope_reference(q_BHTK, k_BGTK, angles.cos(), sin, style=style, apply_dtype="act")
        if all(torch.allclose(one, other, rtol=0, atol=_CLOSE) for one, other in zip(got, want, strict=True)):
            return rotation
    return "leaves the features in an order of its own"


def _candidates(spec: Rope) -> Iterator[tuple[Style, Doubled, bool]]:
    """The spec's style first."""
    styles: tuple[Style, ...] = ("half", "interleaved")
    ways: tuple[Doubled, ...] = ("halves", "pairs", "no")
    return product(sorted(styles, key=lambda style: style != spec.style), ways, (spec.negate, not spec.negate))


def _once(table: Tensor, doubled: Doubled) -> Tensor:
    if doubled == "halves":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if doubled == "pairs" else table


def _twice(table: Tensor, doubled: Doubled) -> Tensor:
    if doubled == "halves":
        return torch.cat((table, table), dim=-1)
    return table.repeat_interleave(2, dim=-1) if doubled == "pairs" else table


# --- the function that takes its place ------------------------------------------------------------------


def _fused(function: Rotate, rotation: Rotation) -> Rotate:
    """The kernel under the function's signature; what it does not take (float64, a table to be learned) HF's does."""

    @wraps(function)
    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        fits = q.ndim == 4 and q.dtype == k.dtype and q.dtype != torch.float64 and unsqueeze_dim in (1, 2)
        if not fits or cos.requires_grad or sin.requires_grad:
            return function(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        tables = rotation.tables(cos, sin)
        if unsqueeze_dim == 1:
            return rope(q, k, *tables, style=rotation.style)
        y, z = rope(q.transpose(1, 2), k.transpose(1, 2), *tables, style=rotation.style)
        return y.transpose(1, 2), z.transpose(1, 2)

    return rotate


def _forward_of(kind: type[nn.Module]) -> FunctionType:
    forward: Any = kind.forward
    assert isinstance(forward, FunctionType)
    return forward


def _rebound(function: FunctionType, meaning: Mapping[str, Any]) -> FunctionType:
    """A function, and those that its decorators wrapped, in which global names mean something else."""
    closure = tuple(
        CellType(_rebound(inner, meaning)) if (inner := _inner(cell)) is not None else cell
        for cell in function.__closure__ or ()
    )
    own = function.__globals__
    if _mentions(function.__code__):
        own = {**own, **meaning}
        own.pop("__name__", None)  # else torch.compile looks the names up in the module of that name, not here
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__, closure or None)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    made.__annotations__, made.__qualname__ = function.__annotations__, function.__qualname__
    made.__module__ = function.__module__
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, FunctionType):
        made.__wrapped__ = _rebound(wrapped, meaning)  # type: ignore[attr-defined]
    return made


def _named_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The functions that rotate among the globals that a function names, or one that its decorators wrapped."""
    for name in sorted(_mentions(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for cell in function.__closure__ or ():
        if (inner := _inner(cell)) is not None:
            yield from _named_globals(inner)


def _inner(cell: CellType) -> FunctionType | None:
    return cell.cell_contents if isinstance(cell.cell_contents, FunctionType) else None


def _mentions(code: CodeType) -> set[str]:
    """The names that rotate among those that code looks up, its inner functions included."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {name for name in code.co_names if name.startswith(_PREFIX)}.union(*map(_mentions, inner))
