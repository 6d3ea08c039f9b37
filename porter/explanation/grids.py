"""Grids that weights are rounded to: what quantisation makes of a matrix [out, in], read back."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]
# The 16 levels of NF4: quantiles of a normal distribution (Dettmers et al. 2023, arXiv:2305.14314, appendix E).
_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
        1.0)  # fmt: skip
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_BLOCK = 128


def narrowed(kind: torch.dtype, w: Tensor) -> Tensor:
    """Rounded to a dtype without any scale."""
    return w.to(kind).to(w.dtype)


def symmetric(levels: int, group: int | None, scale: torch.dtype, w: Tensor) -> Tensor:
    """Whole multiples, −levels to levels, of a step for each group of a row; None: one for the row, 0: for all."""
    grouped = _grouped(w, group)
    step = (grouped.abs().amax(-1, keepdim=True) / levels).to(scale).float()
    return (torch.round(grouped / _nonzero(step)).clamp(-levels - 1, levels) * step).view_as(w).to(w.dtype)


def asymmetric(levels: int, group: int | None, scale: torch.dtype, w: Tensor) -> Tensor:
    """0 to `levels` steps above the least of each group, whose zero is a whole step itself."""
    grouped = _grouped(w, group)
    least, most = grouped.amin(-1, keepdim=True).clamp_max(0), grouped.amax(-1, keepdim=True).clamp_min(0)
    step = _nonzero(((most - least) / levels).to(scale).float())
    zero = torch.round(-least / step)
    return (((torch.round(grouped / step) + zero).clamp(0, levels) - zero) * step).view_as(w).to(w.dtype)


def ggml_q4_0(w: Tensor) -> Tensor:
    """llama.cpp's Q4_0: groups of 32, the largest of which is −8 steps, a step in float16."""
    grouped = _grouped(w, 32)
    largest = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    step = largest / -8
    level = torch.where(step == 0, 0.0, grouped / _nonzero(step))
    return ((torch.floor(level + 8.5).clamp(0, 15) - 8) * step.half().float()).view_as(w).to(w.dtype)


def nf4(w: Tensor) -> Tensor:
    """The nearest of NF4's levels times the largest of each 64, as bitsandbytes has it."""
    grouped, table = _grouped(w, 64), torch.tensor(_NF4, device=w.device)
    largest = grouped.abs().amax(-1, keepdim=True)
    nearest = torch.bucketize((grouped / _nonzero(largest)).contiguous(), (table[1:] + table[:-1]) / 2)
    return (table[nearest] * largest).view_as(w).to(w.dtype)


def float8_scaled(kind: torch.dtype, over: str, w: Tensor) -> Tensor:
    """float8 times a scale that fills its range: of the tensor, each row, or each block of 128 x 128."""
    wide = w.float()
    if over == "tensor":
        largest = wide.abs().amax()
    elif over == "row":
        largest = wide.abs().amax(-1, keepdim=True)
    else:
        out, into = w.shape
        padded = torch.nn.functional.pad(wide, (0, -into % _BLOCK, 0, -out % _BLOCK)).abs()
        blocks = padded.view(padded.shape[0] // _BLOCK, _BLOCK, -1, _BLOCK).amax((1, 3))
        largest = blocks.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)[:out, :into]
    scale = _nonzero(largest / torch.finfo(kind).max)
    return ((wide / scale).to(kind).float() * scale).to(w.dtype)


def grids() -> dict[str, Rounding]:
    """Every grid by name, the plain dtypes first."""
    found: dict[str, Rounding] = {
        "rounded to bfloat16": partial(narrowed, torch.bfloat16),
        "rounded to float16": partial(narrowed, torch.float16),
        "rounded to float8 e4m3": partial(narrowed, _E4M3),
        "rounded to float8 e5m2": partial(narrowed, _E5M2),
        "quantised to int8, a step a row": partial(symmetric, 127, None, torch.float32),
        "quantised to int8, a step a tensor": partial(symmetric, 127, 0, torch.float32),
        "quantised to int8, groups of 32 (Q8_0)": partial(symmetric, 127, 32, torch.float16),
        "quantised to int4 (Q4_0)": ggml_q4_0,
        "quantised to NF4, groups of 64": nf4,
    }
    for kind in ("tensor", "row", "block of 128"):
        found[f"quantised to float8 e4m3, a scale a {kind}"] = partial(float8_scaled, _E4M3, kind)
    for group in (None, 32, 64, 128):
        where = "a step a row" if group is None else f"groups of {group}"
        for name, scale in (("", torch.float32), (", steps in float16", torch.float16)):
            found[f"quantised to int4, {where}{name}"] = partial(symmetric, 7, group, scale)
            found[f"quantised to int4 with zero points, {where}{name}"] = partial(asymmetric, 15, group, scale)
    return found


def by_rows(name: str) -> bool:
    """Whether a grid treats each row alone, so that a table can be read in parts."""
    return not name.endswith(("a tensor", "a block of 128"))


def _grouped(w: Tensor, group: int | None) -> Tensor:
    """[..., group] in float32; a group that does not divide a row is the row."""
    wide = w.float()
    if group == 0:
        return wide.reshape(1, -1)
    width = w.shape[-1]
    return wide.reshape(*w.shape[:-1], -1, group) if group and width % group == 0 else wide


def _nonzero(step: Tensor) -> Tensor:
    return torch.where(step == 0, torch.ones_like(step), step)
