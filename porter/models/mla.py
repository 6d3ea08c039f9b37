"""Latent attention, as transformers' modeling_deepseek_v2.py and modeling_deepseek_v3.py compute it, op by op.

What is cached is the latent and the rotated part of the keys; keys and values are made of them anew for every token.
"""

from typing import Any

import torch
from torch import Tensor

from porter.models.attention import Attention, Tap
from porter.models.modules import Linear, Normalize
from porter.models.ops import Ops
from porter.models.positions import LayerCache, Positions
from porter.specs.mla import Mla
from porter.specs.rules import Weights
from porter.specs.schema import Block, Dims, Norm


class LatentAttention(Attention):
    """In place of Attention; softmax, scale and mask are Attention's."""

    q_a: Linear
    q_b: Linear
    q_a_norm: Normalize
    kv_a: Linear
    kv_b: Linear
    kv_a_norm: Normalize

    def __init__(self, block: Block, dims: Dims, rules: Weights, norm: Norm, ops: Ops) -> None:
        assert isinstance(block.mixer, Mla)
        self.mla = block.mixer
        scale = block.attn.scale * self.mla.mscale * self.mla.mscale
        scaled = block.model_copy(update={"attn": block.attn.model_copy(update={"scale": scale})})
        super().__init__(scaled, dims, rules, norm, ops)

    def forward(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None, tap: Tap) -> Tensor:
        mla, rope = self.mla, self.block.rope
        assert rope is not None
        q_BHTK = self._queries(x_BTD, tap).view(*x_BTD.shape[:-1], -1, mla.nope + mla.rope).transpose(1, 2)
        q_BHTN, q_BHTR = torch.split(q_BHTK, [mla.nope, mla.rope], dim=-1)
        both_BTC = _told(tap, "attn.kv_a", self.kv_a(x_BTD))
        latent_BTL, k_BTR = torch.split(both_BTC, [mla.kv_rank, mla.rope], dim=-1)
        latent_BTL = _told(tap, "attn.kv_a_norm", self.kv_a_norm(latent_BTL))
        if mla.rotation == "complex":
            turns_BTF = positions.turns(rope, self.dims)
            q_BHTR, k_B1TR = (_rotate_complex(x, turns_BTF) for x in (q_BHTR, k_BTR[:, None]))
        else:
            cos, sin = positions.tables(rope, self.dims, x_BTD.dtype)
            q_BHTR, k_B1TR = self.ops.rope(q_BHTR, k_BTR[:, None], cos, sin, rope)
        if mla.deinterleave:
            q_BHTR, k_B1TR = (torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1) for x in (q_BHTR, k_B1TR))
        latent_B1TL = latent_BTL[:, None]
        tap("attn.latent", latent_B1TL.transpose(1, 2))
        tap("attn.k_pe", k_B1TR.transpose(1, 2))
        if cache is not None:
            latent_B1TL, k_B1TR = cache.update(latent_B1TL, k_B1TR)
        q_BTHK = torch.cat((q_BHTN, q_BHTR), dim=-1).transpose(1, 2)
        k_BSHK, v_BHSV = self._expand(latent_B1TL[:, 0], k_B1TR, tap)
        tap("attn.q_rope", q_BTHK)
        tap("attn.k_rope", k_BSHK)
        ctx_BTHV = self._attend(q_BTHK.transpose(1, 2), k_BSHK.transpose(1, 2), v_BHSV, positions)
        ctx_BTC = _told(tap, "attn.ctx", ctx_BTHV.reshape(*x_BTD.shape[:-1], -1).contiguous())
        out_BTD: Tensor = self.o(ctx_BTC)
        return out_BTD

    def _queries(self, x_BTD: Tensor, tap: Tap) -> Tensor:
        if self.mla.q_rank is None:
            q_BTC: Tensor = self.q(x_BTD)
            heads = q_BTC.view(*x_BTD.shape[:-1], -1, self.mla.nope + self.mla.rope)
            tap("attn.q", heads)
            return heads.flatten(2)
        latent_BTL = _told(tap, "attn.q_a", self.q_a(x_BTD))
        return _told(tap, "attn.q_b", self.q_b(_told(tap, "attn.q_a_norm", self.q_a_norm(latent_BTL))))

    def _expand(self, latent_BSL: Tensor, k_B1SR: Tensor, tap: Tap) -> tuple[Tensor, Tensor]:
        """Keys [B, S, H, K] and values [B, H, S, V] of the latents."""
        both_BSC = _told(tap, "attn.kv_b", self.kv_b(latent_BSL))
        both_BHSC = both_BSC.view(*latent_BSL.shape[:-1], -1, self.mla.nope + self.mla.v).transpose(1, 2)
        k_BHSN, v_BHSV = torch.split(both_BHSC, [self.mla.nope, self.mla.v], dim=-1)
        k_BHSK = torch.cat((k_BHSN, k_B1SR.expand(-1, k_BHSN.shape[1], -1, -1)), dim=-1)
        return k_BHSK.transpose(1, 2), v_BHSV


def _rotate_complex(x_BHTR: Tensor, turns_BTF: Tensor) -> Tensor:
    """Pairs of neighbours as complex numbers, turned in float32 and rounded once."""
    turned = torch.view_as_complex(x_BHTR.float().reshape(*x_BHTR.shape[:-1], -1, 2)) * turns_BTF[:, None]
    return torch.view_as_real(turned).flatten(3).to(x_BHTR.dtype)


def _told(tap: Tap, node: str, value: Any) -> Tensor:
    """The value, which the tap is told."""
    assert isinstance(value, Tensor)
    tap(node, value)
    return value
