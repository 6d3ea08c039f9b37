"""Self-attention, in eager math that matches HF's op by op."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.models.modules import Linear, Normalize, RepeatHeads, Vector, make_norms, make_projections
from porter.models.ops import Ops
from porter.models.positions import LayerCache, Positions
from porter.specs.rules import WeightRule, Weights
from porter.specs.schema import Attention as AttentionSpec
from porter.specs.schema import Block, Dims, Norm

Tap = Callable[[str, Tensor], None]  # is told each node's name and value


class Attention(nn.Module):
    """Projections, norms, rotation, softmax (transformers modeling_llama.py, eager_attention_forward)."""

    q: Linear
    k: Linear
    v: Linear
    qkv: Linear
    o: Linear
    q_norm: Normalize
    k_norm: Normalize
    inner_norm: Normalize
    repeat_k: RepeatHeads
    repeat_v: RepeatHeads

    def __init__(self, block: Block, dims: Dims, rules: Weights, norm: Norm, ops: Ops) -> None:
        super().__init__()
        self.block, self.dims, self.ops = block, dims, ops
        self.qkv_rule = rules.block.get("attn.qkv")
        for name, module in [
            *make_norms("attn", block, dims, norm, ops), *make_projections("attn", block, dims, rules)
        ]:  # fmt: skip
            self.add_module(name, module)
        self.sinks = Vector(dims.heads) if block.attn.sinks else None
        self.repeat_k, self.repeat_v = (RepeatHeads(dims.heads // dims.kv_heads) for _ in "kv")

    def forward(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None, tap: Tap) -> Tensor:
        spec, rope = self.block.attn, self.block.rope
        q_BTHK, k_BTGK, v_BTGK = self._project(x_BTD, tap)
        if spec.qk_norm and spec.qk_norm.when == "before_rope":
            q_BTHK, k_BTGK = self._normalize(q_BTHK, k_BTGK, tap)
        q_BHTK, k_BGTK, v_BGTK = (clip_heads(t, spec).transpose(1, 2) for t in (q_BTHK, k_BTGK, v_BTGK))
        if rope is not None:
            cos, sin = positions.tables(rope, self.dims, x_BTD.dtype)
            q_BHTK, k_BGTK = self.ops.rope(q_BHTK, k_BGTK, cos, sin, rope)
        if spec.qk_norm and spec.qk_norm.when == "after_rope":
            q_BTHK, k_BTGK = self._normalize(q_BHTK.transpose(1, 2), k_BGTK.transpose(1, 2), tap)
            q_BHTK, k_BGTK = q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2)
        if spec.scale_on == "query":
            q_BHTK = q_BHTK * spec.scale
        if spec.temperature is not None:
            q_BHTK = q_BHTK * positions.temperature(spec.temperature, q_BHTK.dtype)
        q_BTHK, k_BTGK = q_BHTK.transpose(1, 2), k_BGTK.transpose(1, 2)
        tap("attn.q_rope", q_BTHK)
        tap("attn.k_rope", k_BTGK)
        q_BHTK, k_BGTK = q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2)  # what was tapped has the gradient
        if cache is not None:
            k_BGTK, v_BGTK = cache.update(k_BGTK, v_BGTK)
        ctx_BTHK = self._attend(q_BHTK, k_BGTK, v_BGTK, positions)
        ctx_BTD = ctx_BTHK.reshape(*x_BTD.shape[:-1], -1).contiguous()
        tap("attn.ctx", ctx_BTD)
        if self.block.attn.inner_norm:
            ctx_BTD = self.inner_norm(ctx_BTD)
            tap("attn.inner_norm", ctx_BTD)
        out_BTD: Tensor = self.o(ctx_BTD)
        return out_BTD

    def _project(self, x_BTD: Tensor, tap: Tap) -> tuple[Tensor, Tensor, Tensor]:
        if self.qkv_rule is None:
            parts = [self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)]
            heads = [part.view(*x_BTD.shape[:-1], -1, self.dims.head_dim) for part in parts]
        else:
            heads = split_qkv(self.qkv(x_BTD), self.dims, self.qkv_rule)
        for name, head in zip(("attn.q", "attn.k", "attn.v"), heads, strict=True):
            tap(name, head)
        return heads[0], heads[1], heads[2]

    def _normalize(self, q_BTHK: Tensor, k_BTGK: Tensor, tap: Tap) -> tuple[Tensor, Tensor]:
        assert self.block.attn.qk_norm is not None
        if self.block.attn.qk_norm.over == "full":
            q_BTHK, k_BTGK = (
                norm(x.flatten(2)).view(x.shape) for norm, x in ((self.q_norm, q_BTHK), (self.k_norm, k_BTGK))
            )
        else:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        tap("attn.q_norm", q_BTHK)
        tap("attn.k_norm", k_BTGK)
        return q_BTHK, k_BTGK

    def _attend(self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, positions: Positions) -> Tensor:
        spec = self.block.attn
        k_BHSK: Tensor = self.repeat_k(k_BGSK)
        v_BHSK: Tensor = self.repeat_v(v_BGSK)
        scores_BHTS = self._score(q_BHTK, k_BHSK, positions)
        scores_BHTS = scores_BHTS + positions.mask(spec.window, scores_BHTS.dtype)
        if self.sinks is not None and spec.sinks == "column":
            return (_softmax_beside(scores_BHTS, self.sinks.weight).to(v_BHSK.dtype) @ v_BHSK).transpose(1, 2)
        wide = torch.promote_types(q_BHTK.dtype, torch.float32)
        weights_BHTS = F.softmax(scores_BHTS, dim=-1, dtype=wide).to(v_BHSK.dtype)
        ctx_BHTK = weights_BHTS @ v_BHSK
        if self.sinks is not None:
            share_BHT = (torch.logsumexp(scores_BHTS, dim=-1) - self.sinks.weight.view(1, -1, 1)).to(wide).sigmoid()
            ctx_BHTK = ctx_BHTK * share_BHT[..., None].to(ctx_BHTK.dtype)
        return ctx_BHTK.transpose(1, 2)

    def _score(self, q_BHTK: Tensor, k_BHSK: Tensor, positions: Positions) -> Tensor:
        """[B, H, T, S], scaled, capped and biased, before the mask."""
        spec, alibi = self.block.attn, self.block.alibi
        bias_BHTS = None if alibi is None else positions.alibi(alibi, self.dims.heads, q_BHTK.dtype)
        if spec.scores_dtype == "fp32":
            wide = torch.promote_types(q_BHTK.dtype, torch.float32)
            q_BHTK, k_BHSK = q_BHTK.to(wide), k_BHSK.to(wide)
        if spec.scale_on == "product":
            scores_BHTS, bias_BHTS = _scaled_product(q_BHTK, k_BHSK, bias_BHTS, spec.scale), None
        else:
            scores_BHTS = q_BHTK @ k_BHSK.transpose(2, 3)
        if spec.scale_on == "scores":
            scores_BHTS = scores_BHTS * spec.scale
        if spec.softcap is not None:
            scores_BHTS = self.ops.softcap(scores_BHTS, spec.softcap)
        return scores_BHTS if bias_BHTS is None else scores_BHTS + bias_BHTS


def clip_heads(x: Tensor, spec: AttentionSpec) -> Tensor:
    """Queries, keys or values as they go on, clipped where the spec says so."""
    return x if spec.clip_qkv is None else x.clamp(-spec.clip_qkv, spec.clip_qkv)


def split_qkv(fused: Tensor, dims: Dims, rule: WeightRule) -> list[Tensor]:
    """q, k and v of a fused projection's output [..., rows], each [..., heads, K], by the rule's order and groups."""
    groups = {"1": 1, "4": 4, "heads": dims.heads, "kv_heads": dims.kv_heads}[rule.groups]
    counts = {"q": dims.heads // groups, "k": dims.kv_heads // groups, "v": dims.kv_heads // groups}
    if rule.groups == "heads":
        counts = dict.fromkeys("qkv", 1)
    grouped = fused.view(*fused.shape[:-1], groups, -1, dims.head_dim)
    parts = dict(zip(rule.order, torch.split(grouped, [counts[part] for part in rule.order], dim=-2), strict=True))
    return [parts[name].flatten(-3, -2) for name in "qkv"]


def _scaled_product(q_BHTK: Tensor, k_BHSK: Tensor, bias_BHTS: Tensor | None, scale: float) -> Tensor:
    """[B, H, T, S]: bias + scale * q·k, rounded once."""
    B, H, T, _ = q_BHTK.shape
    bias = q_BHTK.new_zeros(1, 1, 1) if bias_BHTS is None else bias_BHTS.expand(B, -1, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(
        bias.to(q_BHTK.dtype), q_BHTK.flatten(0, 1), k_BHSK.flatten(0, 1).transpose(1, 2), alpha=scale
    )  # fmt: skip
    return scores.view(B, H, T, -1)


def _softmax_beside(scores_BHTS: Tensor, sinks_H: Tensor) -> Tensor:
    """[B, H, T, S]: the softmax over the keys and a sink, without the sink's share, in the dtype of the scores."""
    B, _, T, _ = scores_BHTS.shape
    beside = torch.cat((scores_BHTS, sinks_H.view(1, -1, 1, 1).expand(B, -1, T, -1)), dim=-1)
    beside = beside - beside.amax(-1, keepdim=True)
    return F.softmax(beside, dim=-1, dtype=beside.dtype)[..., :-1]
