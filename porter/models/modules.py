"""The modules of a decoder that hold parameters; parameters are named as in the blueprint.

Nodes: each module reports what it computed to a tap, under the names of the diff (`attn.q_rope`); see nodes.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.models.ops import Ops
from porter.models.positions import LayerCache, Positions
from porter.specs.blueprint import Blueprint, projections
from porter.specs.blueprint import norms as norms_of
from porter.specs.schema import Block, Dims, Norm, Weights, WeightRule

Tap = Callable[[str, Tensor], None]


def no_tap(name: str, value: Tensor) -> None:
    """Reports nothing."""


class Linear(nn.Module):
    """y = x W^T + b. Weights stored [in, out] stay so and are multiplied as GPT-2's Conv1D does."""

    def __init__(self, out_features: int, in_features: int, bias: bool, stored_in_out: bool) -> None:
        super().__init__()
        shape = (in_features, out_features) if stored_in_out else (out_features, in_features)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.stored_in_out = stored_in_out

    def forward(self, x: Tensor) -> Tensor:
        if not self.stored_in_out:
            return F.linear(x, self.weight, self.bias)
        x_ND = x.view(-1, x.shape[-1])
        y_NF = x_ND @ self.weight if self.bias is None else torch.addmm(self.bias, x_ND, self.weight)
        return y_NF.view(*x.shape[:-1], -1)


class Normalize(nn.Module):
    """The norm that `spec` describes."""

    def __init__(self, spec: Norm, width: int, ops: Ops) -> None:
        super().__init__()
        self.spec, self.ops = spec, ops
        self.weight = nn.Parameter(torch.empty(width)) if spec.affine else None
        self.bias = nn.Parameter(torch.empty(width)) if spec.bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.norm(x, self.weight, self.bias, self.spec)


class Attention(nn.Module):
    """Self-attention in eager math that matches HF's, op by op (transformers modeling_llama.py, eager_attention_forward)."""

    def __init__(self, block: Block, dims: Dims, rules: Weights, norm: Norm, ops: Ops) -> None:
        super().__init__()
        self.block, self.dims, self.ops = block, dims, ops
        self.qkv_rule = rules.block.get("attn.qkv")
        for name, module in _branch("attn", block, dims, rules, norm, ops):
            self.add_module(name, module)

    def forward(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None, tap: Tap) -> Tensor:
        spec, rope = self.block.attn, self.block.rope
        q_BTHK, k_BTGK, v_BTGK = self._project(x_BTD, tap)
        if spec.qk_norm and spec.qk_norm.when == "before_rope":
            q_BTHK, k_BTGK = self._normalize(q_BTHK, k_BTGK, tap)
        q_BHTK, k_BGTK, v_BGTK = (t.transpose(1, 2) for t in (q_BTHK, k_BTGK, v_BTGK))
        if rope is not None:
            cos, sin = positions.tables(rope, self.dims, x_BTD.dtype)
            q_BHTK, k_BGTK = self.ops.rope(q_BHTK, k_BGTK, cos, sin, rope)
        if spec.qk_norm and spec.qk_norm.when == "after_rope":
            q_BTHK, k_BTGK = self._normalize(q_BHTK.transpose(1, 2), k_BGTK.transpose(1, 2), tap)
            q_BHTK, k_BGTK = q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2)
        tap("attn.q_rope", q_BHTK.transpose(1, 2))
        tap("attn.k_rope", k_BGTK.transpose(1, 2))
        if cache is not None:
            k_BGTK, v_BGTK = cache.update(k_BGTK, v_BGTK)
        ctx_BTHK = self._attend(q_BHTK, k_BGTK, v_BGTK, positions)
        ctx_BTD = ctx_BTHK.reshape(*x_BTD.shape[:-1], -1).contiguous()
        tap("attn.ctx", ctx_BTD)
        out_BTD: Tensor = self.o(ctx_BTD)
        return out_BTD

    def _project(self, x_BTD: Tensor, tap: Tap) -> tuple[Tensor, Tensor, Tensor]:
        if self.qkv_rule is None:
            parts = [self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)]
            if self.block.attn.qk_norm and self.block.attn.qk_norm.over == "full":
                pass  # the norm sees all heads at once, in _normalize
            heads = [part.view(*x_BTD.shape[:-1], -1, self.dims.head_dim) for part in parts]
        else:
            heads = split_qkv(self.qkv(x_BTD), self.dims, self.qkv_rule)
        if self.block.attn.clip_qkv is not None:
            heads = [head.clamp(-self.block.attn.clip_qkv, self.block.attn.clip_qkv) for head in heads]
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
        k_BHSK, v_BHSK = (_repeat_heads(t, self.dims.heads // self.dims.kv_heads) for t in (k_BGSK, v_BGSK))
        if spec.scale_on == "query":
            q_BHTK = q_BHTK * spec.scale
        if spec.scores_dtype == "fp32":
            wide = torch.promote_types(q_BHTK.dtype, torch.float32)
            scores_BHTS = q_BHTK.to(wide) @ k_BHSK.to(wide).transpose(2, 3)
        else:
            scores_BHTS = q_BHTK @ k_BHSK.transpose(2, 3)
        if spec.scale_on == "scores":
            scores_BHTS = scores_BHTS * spec.scale
        if spec.softcap is not None:
            scores_BHTS = self.ops.softcap(scores_BHTS, spec.softcap)
        scores_BHTS = scores_BHTS + positions.mask(spec.window, scores_BHTS.dtype)
        wide = torch.promote_types(q_BHTK.dtype, torch.float32)
        weights_BHTS = F.softmax(scores_BHTS, dim=-1, dtype=wide).to(v_BHSK.dtype)
        return (weights_BHTS @ v_BHSK).transpose(1, 2)


class Mlp(nn.Module):
    """The feed-forward branch."""

    def __init__(self, block: Block, dims: Dims, rules: Weights, norm: Norm, ops: Ops) -> None:
        super().__init__()
        self.spec, self.ops = block.mlp, ops
        self.gate_up_rule = rules.block.get("mlp.gate_up") if block.mlp.gated else None
        for name, module in _branch("mlp", block, dims, rules, norm, ops):
            self.add_module(name, module)

    def forward(self, x_BTD: Tensor, tap: Tap) -> Tensor:
        if not self.spec.gated:
            up_BTF: Tensor = self.up(x_BTD)
            tap("mlp.up", up_BTF)
            act_BTF = self.ops.activation(up_BTF, self.spec.act)
        else:
            if self.gate_up_rule is None:
                gate_BTF, up_BTF = self.gate(x_BTD), self.up(x_BTD)
            else:
                parts = dict(zip(self.gate_up_rule.order, self.gate_up(x_BTD).chunk(2, dim=-1), strict=True))
                gate_BTF, up_BTF = parts["gate"], parts["up"]
            tap("mlp.gate", gate_BTF)
            tap("mlp.up", up_BTF)
            act_BTF = self.ops.glu(gate_BTF, up_BTF, self.spec.act)
        tap("mlp.act", act_BTF)
        out_BTD: Tensor = self.down(act_BTF)
        return out_BTD


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward, their norms, and the residual stream."""

    def __init__(self, blueprint: Blueprint, index: int, ops: Ops) -> None:
        super().__init__()
        self.block = block = blueprint.blocks[index]
        self.attn = Attention(block, blueprint.dims, blueprint.weights, blueprint.norm, ops)
        self.mlp = Mlp(block, blueprint.dims, blueprint.weights, blueprint.norm, ops)

    def forward(
        self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None = None, tap: Tap = no_tap
    ) -> Tensor:
        block, scale = self.block, self.block.residual_scale
        normed_BTD = self._pre(self.attn, "attn.norm", x_BTD, tap) if block.attn.pre_norm else x_BTD
        attn_BTD = self.attn(normed_BTD, positions, cache, tap)
        tap("attn.out", attn_BTD)
        attn_BTD = self._post(self.attn, "attn.post_norm", attn_BTD, tap) if block.attn.post_norm else attn_BTD
        attn_BTD = attn_BTD if scale == 1.0 else attn_BTD * scale
        if block.topology == "parallel":
            into_BTD = normed_BTD if block.mlp.pre_norm == "shared" else x_BTD
        else:
            x_BTD = into_BTD = x_BTD + attn_BTD
            tap("resid_mid", x_BTD)
        if block.mlp.pre_norm is True:
            into_BTD = self._pre(self.mlp, "mlp.norm", into_BTD, tap)
        mlp_BTD = self.mlp(into_BTD, tap)
        tap("mlp.out", mlp_BTD)
        mlp_BTD = self._post(self.mlp, "mlp.post_norm", mlp_BTD, tap) if block.mlp.post_norm else mlp_BTD
        mlp_BTD = mlp_BTD if scale == 1.0 else mlp_BTD * scale
        if block.topology == "sequential":
            x_BTD = x_BTD + mlp_BTD
        elif block.add_order == "residual_first":
            x_BTD = (x_BTD + attn_BTD) + mlp_BTD
        else:
            x_BTD = (mlp_BTD + attn_BTD) + x_BTD
        tap("resid_post", x_BTD)
        return x_BTD

    @staticmethod
    def _pre(branch: nn.Module, node: str, x_BTD: Tensor, tap: Tap) -> Tensor:
        y_BTD: Tensor = branch.get_submodule("norm")(x_BTD)
        tap(node, y_BTD)
        return y_BTD

    @staticmethod
    def _post(branch: nn.Module, node: str, x_BTD: Tensor, tap: Tap) -> Tensor:
        y_BTD: Tensor = branch.get_submodule("post_norm")(x_BTD)
        tap(node, y_BTD)
        return y_BTD


class Embedding(nn.Module):
    """Token ids to the residual stream."""

    def __init__(self, blueprint: Blueprint, ops: Ops) -> None:
        super().__init__()
        dims, self.spec = blueprint.dims, blueprint.embed
        self.embed = _Table(dims.vocab, dims.hidden)
        if self.spec.positions == "learned":
            self.pos = _Table(dims.max_pos + self.spec.pos_offset, dims.hidden)
        if self.spec.norm:
            self.embed_norm = Normalize(blueprint.norm, dims.hidden, ops)

    def forward(self, ids_BT: Tensor, positions: Positions, tap: Tap = no_tap) -> Tensor:
        x_BTD = F.embedding(ids_BT, self.embed.weight)
        if self.spec.scale is not None:
            if self.spec.scale_rounding == "act":
                scale = torch.tensor(self.spec.scale, dtype=torch.promote_types(x_BTD.dtype, torch.float32))
                x_BTD = x_BTD * scale.to(device=x_BTD.device, dtype=x_BTD.dtype)
            else:
                x_BTD = x_BTD * self.spec.scale
        if self.spec.positions == "learned":
            x_BTD = x_BTD + F.embedding(positions.ids_T + self.spec.pos_offset, self.pos.weight)
        if self.spec.norm:
            x_BTD = self.embed_norm(x_BTD)
        tap("embed.out", x_BTD)
        return x_BTD


class Head(nn.Module):
    """The residual stream to logits."""

    def __init__(self, blueprint: Blueprint, ops: Ops) -> None:
        super().__init__()
        dims, self.spec, self.ops = blueprint.dims, blueprint.head, ops
        self.final_norm = Normalize(blueprint.norm, dims.hidden, ops) if blueprint.final_norm else None
        self.head = Linear(dims.vocab, dims.hidden, self.spec.bias, stored_in_out=False)

    def forward(self, x_BTD: Tensor, tap: Tap = no_tap) -> Tensor:
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
            tap("final.norm", x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        if self.spec.mul != 1.0:
            logits_BTV = logits_BTV * self.spec.mul
        if self.spec.div != 1.0:
            logits_BTV = logits_BTV / self.spec.div
        if self.spec.softcap is not None:
            logits_BTV = self.ops.softcap(logits_BTV, self.spec.softcap)
        tap("logits", logits_BTV)
        return logits_BTV


class _Table(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))


def split_qkv(fused: Tensor, dims: Dims, rule: WeightRule) -> list[Tensor]:
    """q, k and v of a fused projection's output [..., rows], each [..., heads, K], by the rule's order and groups."""
    groups = {"1": 1, "heads": dims.heads, "kv_heads": dims.kv_heads}[rule.groups]
    counts = {"q": dims.heads // groups, "k": dims.kv_heads // groups, "v": dims.kv_heads // groups}
    if rule.groups == "heads":
        counts = dict.fromkeys("qkv", 1)
    grouped = fused.view(*fused.shape[:-1], groups, -1, dims.head_dim)
    parts = dict(zip(rule.order, grouped.split([counts[part] for part in rule.order], dim=-2), strict=True))
    return [parts[name].flatten(-3, -2) for name in "qkv"]


def _branch(
    scope: str, block: Block, dims: Dims, rules: Weights, norm: Norm, ops: Ops
) -> list[tuple[str, nn.Module]]:
    """The norms and projections of one branch, by their names below `scope`."""
    found: list[tuple[str, nn.Module]] = []
    for name, (spec, width) in norms_of(block, norm, dims).items():
        if name.startswith(scope):
            found.append((name.removeprefix(f"{scope}."), Normalize(spec, width, ops)))
    for name, (out, into, bias) in projections(block, dims, rules).items():
        if name.startswith(scope):
            found.append((name.removeprefix(f"{scope}."), Linear(out, into, bias, rules.block[name].transpose)))
    return found


def _repeat_heads(x_BGSK: Tensor, times: int) -> Tensor:
    if times == 1:
        return x_BGSK
    B, G, S, K = x_BGSK.shape
    return x_BGSK[:, :, None].expand(B, G, times, S, K).reshape(B, G * times, S, K)


