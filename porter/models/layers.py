"""The units of a decoder: the embedding, one layer, the head. Each tells a tap the nodes it computed, by name."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.models.attention import Attention, Tap
from porter.models.mlp import Mlp
from porter.models.modules import Add, Linear, Normalize, Table
from porter.models.moe import Moe
from porter.models.ops import Ops
from porter.models.positions import LayerCache, Positions
from porter.models.sinusoids import sinusoids
from porter.specs.blueprint import Blueprint, mixer_of


def no_tap(name: str, value: Tensor) -> None:
    """Reports nothing."""


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward, their norms, and the residual stream."""

    def __init__(self, blueprint: Blueprint, index: int, ops: Ops) -> None:
        super().__init__()
        self.block = block = blueprint.blocks[index]
        mixer = mixer_of(block)
        kind: type[Attention] = Attention if mixer is None else mixer.load(ops.name)
        self.attn = kind(block, blueprint.dims, blueprint.weights, blueprint.norm, ops)
        self.mlp = Mlp("mlp", block, blueprint.dims, blueprint.weights, ops, blueprint.norm)
        self.moe = Moe(block, blueprint.dims, blueprint.weights, ops) if block.moe else None
        self.attn_add = Add()

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        cache: LayerCache | None = None,
        tap: Tap = no_tap,
        routing_BTK: Tensor | None = None,
    ) -> Tensor:
        block, scale = self.block, self.block.residual_scale
        normed_BTD = self._norm(self.attn, "attn.norm", x_BTD, tap) if block.attn.pre_norm else x_BTD
        attn_BTD = self.attn(normed_BTD, positions, cache, tap)
        tap("attn.out", attn_BTD)
        attn_BTD = self._norm(self.attn, "attn.post_norm", attn_BTD, tap) if block.attn.post_norm else attn_BTD
        attn_BTD = attn_BTD if scale == 1.0 else attn_BTD * scale
        if block.topology == "parallel":
            into_BTD = normed_BTD if block.mlp.pre_norm == "shared" else x_BTD
        else:
            x_BTD = self.attn_add(x_BTD, attn_BTD)
            x_BTD = into_BTD = self._norm(self.attn, "attn.after_norm", x_BTD, tap) if block.attn.after_norm else x_BTD
            tap("resid_mid", x_BTD)
        if block.mlp.pre_norm is True:
            into_BTD = self._norm(self.mlp, "mlp.norm", into_BTD, tap)
        mlp_BTD: Tensor = self.mlp(into_BTD, tap) if self.moe is None else self.moe(into_BTD, tap, routing_BTK)
        mlp_BTD = self._norm(self.mlp, "mlp.post_norm", mlp_BTD, tap) if block.mlp.post_norm else mlp_BTD
        mlp_BTD = mlp_BTD if scale == 1.0 else mlp_BTD * scale
        if block.topology == "sequential":
            x_BTD = x_BTD + mlp_BTD
        elif block.add_order == "residual_first":
            x_BTD = (x_BTD + attn_BTD) + mlp_BTD
        else:
            x_BTD = (mlp_BTD + attn_BTD) + x_BTD
        x_BTD = self._norm(self.mlp, "mlp.after_norm", x_BTD, tap) if block.mlp.after_norm else x_BTD
        tap("resid_post", x_BTD)
        return x_BTD

    @staticmethod
    def _norm(branch: nn.Module, node: str, x_BTD: Tensor, tap: Tap) -> Tensor:
        y_BTD: Tensor = branch.get_submodule(node.partition(".")[2])(x_BTD)
        tap(node, y_BTD)
        return y_BTD


class Embedding(nn.Module):
    """Token ids to the residual stream."""

    def __init__(self, blueprint: Blueprint, ops: Ops) -> None:
        super().__init__()
        dims, self.spec, width = blueprint.dims, blueprint.embed, blueprint.embed_width
        self.embed = Table(dims.vocab, width)
        projected = width != dims.hidden
        self.project_in = Linear(dims.hidden, width, bias=False, stored_in_out=False) if projected else None
        if self.spec.positions == "learned":
            self.pos = Table(dims.pos_rows, dims.hidden)
        if self.spec.norm:
            self.embed_norm = Normalize(blueprint.norm, (dims.hidden,), ops)

    def forward(self, ids_BT: Tensor, positions: Positions, tap: Tap = no_tap) -> Tensor:
        x_BTD = F.embedding(ids_BT, self.embed.weight)
        if self.spec.scale is not None:
            if self.spec.scale_rounding == "act":
                scale = torch.tensor(self.spec.scale, dtype=torch.promote_types(x_BTD.dtype, torch.float32))
                x_BTD = x_BTD * scale.to(device=x_BTD.device, dtype=x_BTD.dtype)
            else:
                x_BTD = x_BTD * self.spec.scale
        if self.project_in is not None:
            x_BTD = self.project_in(x_BTD)
        if self.spec.positions == "learned":
            x_BTD = x_BTD + F.embedding(positions.ids_BT + self.spec.pos_offset, self.pos.weight)
        elif self.spec.positions != "none":
            table_BTD = sinusoids(self.spec.positions, positions.ids_BT + self.spec.pos_offset, x_BTD.shape[-1])
            x_BTD = x_BTD + table_BTD.to(x_BTD.dtype)
        if self.spec.norm:
            x_BTD = self.embed_norm(x_BTD)
        tap("embed.out", x_BTD)
        return x_BTD


class Head(nn.Module):
    """The residual stream to logits."""

    def __init__(self, blueprint: Blueprint, ops: Ops) -> None:
        super().__init__()
        dims, self.spec, self.ops = blueprint.dims, blueprint.head, ops
        self.final_norm = Normalize(blueprint.norm, (dims.hidden,), ops) if blueprint.final_norm else None
        width = blueprint.embed_width
        projected = width != dims.hidden
        self.project_out = Linear(width, dims.hidden, bias=False, stored_in_out=False) if projected else None
        self.head = Linear(dims.vocab, width, self.spec.bias, stored_in_out=False)

    def forward(self, x_BTD: Tensor, tap: Tap = no_tap) -> Tensor:
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
            tap("final.norm", x_BTD)
        if self.project_out is not None:
            x_BTD = self.project_out(x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        if self.spec.mul != 1.0:
            logits_BTV = logits_BTV * self.spec.mul
        if self.spec.div != 1.0:
            logits_BTV = logits_BTV / self.spec.div
        if self.spec.softcap is not None:
            logits_BTV = self.ops.softcap(logits_BTV, self.spec.softcap)
        tap("logits", logits_BTV)
        return logits_BTV
