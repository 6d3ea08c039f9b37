"""How a port lays out a tensor that the reference lays out otherwise: declared in a map file, never guessed.

axes: BHTK              the port's axes; porter's are BTHK, or BTD. Without B: no batch axis
slice: "0:96"           of the last axis, as Python writes it: one part of a fused projection; "::2" every second
groups: 2               the last axis is so many groups, and the slice is taken of each
heads: [0, 2, 1, 3]     the port's head j is the reference's head heads[j]
repeat: 3               each head stands there so many times, as after repeat_kv
rope: interleaved       within a head, the port's channels stand in pairs (2i, 2i + 1), the reference's in halves;
                        rope: half, the other way about
transpose: true         of a weight: stored [in, out]
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from porter.specs.blueprint import Blueprint
from porter.specs.kinds import Strict

Style = Literal["half", "interleaved"]
OF_Q = frozenset(["attn.q", "attn.q_norm", "attn.q_rope", "attn.ctx"])  # nodes with a head for each query head
OF_K = frozenset(["attn.k", "attn.k_norm", "attn.k_rope", "attn.v"])
_SLICE = re.compile(r"(-?\d*):(-?\d*)(?::(\d+))?")


class Layout(Strict):
    """The declarations of one node; none of them: as the reference has it."""

    axes: str = Field("", description="Letters of B, T, H, K, D in the port's order.")
    slice: str = ""
    groups: int = Field(1, ge=1)
    heads: tuple[int, ...] = Field((), strict=False)
    repeat: int = Field(1, ge=1)
    rope: Style | None = None

    @field_validator("slice")
    @classmethod
    def _is_slice(cls, value: str) -> str:
        if value and not _SLICE.fullmatch(value):
            raise ValueError(f"{value!r} is no slice; 0:96 and ::2 are")
        return value

    @field_validator("axes")
    @classmethod
    def _are_axes(cls, value: str) -> str:
        if value and sorted(value.replace("B", "")) not in (sorted("TD"), sorted("THK")):
            raise ValueError(f"axes {value!r} are neither those of BTD nor of BTHK in another order")
        return value

    @field_validator("heads")
    @classmethod
    def _are_heads(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(value) != list(range(len(value))):
            raise ValueError(f"heads {list(value)} is no order of 0 to {len(value) - 1}")
        return value

    def declared(self) -> dict[str, Any]:
        """What is declared, as a map file says it."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.model_dump(exclude_defaults=True).items()
        }


@dataclass(frozen=True)
class Heads:
    """The heads of a node.

    Attributes:
        count, width: of the reference's heads.
        rotated: how many channels of a head RoPE rotates.
    """

    count: int
    width: int
    rotated: int


def heads_of(node: str, blueprint: Blueprint, layer: int | None) -> Heads | None:
    """The heads of a node that has them."""
    dims = blueprint.dims
    if node in OF_Q or node in OF_K:
        rope = blueprint.blocks[layer or 0].rope
        rotated = 0 if rope is None else rope.dim or int(dims.head_dim * rope.partial)
        return Heads(dims.heads if node in OF_Q else dims.kv_heads, dims.head_dim, rotated)
    return None


def to_reference(value: Tensor, layout: Layout, heads: Heads | None) -> Tensor:
    """[B, T, heads, K] or [B, T, F], as the reference has it.

    Raises:
        ValueError: the tensor does not have the axes, channels or heads that are declared.
    """
    x_BTF = channels(value, layout.axes)
    if layout.slice or layout.groups > 1:
        if x_BTF.shape[-1] % layout.groups:
            raise ValueError(f"{x_BTF.shape[-1]} channels are not {layout.groups} groups of one width")
        grouped = x_BTF.reshape(*x_BTF.shape[:2], layout.groups, -1)
        x_BTF = grouped[..., _slice(layout.slice)].flatten(-2)
    if heads is None:
        if layout.heads or layout.rope or layout.repeat > 1:
            raise ValueError("heads, repeat and rope are declared, and the node has no heads")
        return x_BTF
    if x_BTF.shape[-1] % heads.width:
        return x_BTF  # no heads of that width: whoever compares says so
    x_BTHK = x_BTF.reshape(*x_BTF.shape[:2], -1, heads.width)
    x_BTHK = x_BTHK[:, :, :: layout.repeat] if layout.repeat > 1 else x_BTHK
    if layout.heads:
        if len(layout.heads) != x_BTHK.shape[2]:
            raise ValueError(f"{len(layout.heads)} heads are declared, and there are {x_BTHK.shape[2]}")
        x_BTHK = x_BTHK[:, :, torch.tensor(layout.heads).argsort().to(x_BTHK.device)]
    if layout.rope:
        x_BTHK = x_BTHK[..., rope_order(layout.rope, heads).to(x_BTHK.device)]
    return x_BTHK


def channels(value: Tensor, axes: str) -> Tensor:
    """[B, T, F] of a tensor whose axes are given, or are B, T and any others."""
    if axes:
        if value.ndim != len(axes):
            raise ValueError(f"the axes {axes} are {len(axes)}, and the tensor is {list(value.shape)}")
        order = "BTHK" if "H" in axes else "BTD"
        value = value.permute([axes.index(letter) for letter in order if letter in axes])
        value = value if "B" in axes else value[None]
    if value.ndim < 3:
        raise ValueError(f"the tensor is {list(value.shape)}, and has no axes B, T and another; declare axes: TD")
    return value.flatten(2)


def rope_order(port: Style, heads: Heads) -> Tensor:
    """[K]: for each channel of the reference's head, where the port has it; the reference has the other style."""
    half = torch.arange(heads.rotated).view(2, -1)  # of a head in halves, channel by pair
    pairs = torch.arange(heads.rotated).view(-1, 2)
    rotated = pairs.T.flatten() if port == "interleaved" else half.T.flatten()
    return torch.cat((rotated, torch.arange(heads.rotated, heads.width)))


def _slice(text: str) -> slice:
    found = _SLICE.fullmatch(text or ":")
    assert found is not None
    return slice(*(int(part) if part else None for part in found.groups()))
