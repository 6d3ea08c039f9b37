"""A mixture of experts: the router, the experts it sends tokens to, and the one that all go to.

The experts run one after the other, each on its tokens, and add what they give times the token's weight to the output,
in the order of their numbers: transformers' `experts_implementation="eager"`, bit for bit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.models.attention import Tap
from porter.models.mlp import Mlp
from porter.models.modules import Linear, Vector, make_projections, split_gate_up
from porter.models.ops import Ops
from porter.specs.blueprint import experts
from porter.specs.moe import Groups, Router
from porter.specs.plugins import plugin_of
from porter.specs.rules import Weights
from porter.specs.schema import Block, Dims

CHOICE = "moe.choice"  # [B, T, K]: the experts that a router chose itself; told to taps, but no node: it is no number


@dataclass(frozen=True)
class Routed:
    """Where the tokens of a layer went.

    Attributes:
        own: [B, T, K], the experts that its router chose.
        taken: [B, T, K], those the tokens went to: another model's choice, where that was asked for.
        scores: [B, T, E], what it chose by; -inf in groups that were not chosen from. None: not shown.
    """

    own: Tensor
    taken: Tensor
    scores: Tensor | None = None


class Stacked(nn.Module):
    """A linear map for each expert. Weights stored [experts, in, out] stay so, as in a Linear.

    A bias is added after the product was rounded, as gpt-oss does.
    """

    def __init__(self, shape: tuple[int, int, int], bias: bool, stored_in_out: bool) -> None:
        """
        Args:
            shape: experts, out, in.
        """
        super().__init__()
        count, out, into = shape
        self.weight = nn.Parameter(torch.empty(count, into, out) if stored_in_out else torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(count, out)) if bias else None
        self.stored_in_out = stored_in_out

    def of(self, expert: int, x_ND: Tensor) -> Tensor:
        """[N, out], what one expert makes of its tokens."""
        weight = self.weight[expert]
        y_NF = x_ND @ weight if self.stored_in_out else F.linear(x_ND, weight)
        return y_NF if self.bias is None else y_NF + self.bias[expert]


class Moe(nn.Module):
    """Experts in place of a feed-forward branch."""

    router: Linear
    gate: Stacked
    up: Stacked
    gate_up: Stacked
    down: Stacked
    shared_gate: Linear

    def __init__(self, block: Block, dims: Dims, rules: Weights, ops: Ops) -> None:
        super().__init__()
        assert block.moe is not None
        self.spec, self.ops = block.moe, ops
        self.gate_up_rule = rules.block.get("moe.gate_up")
        for name, module in make_projections("moe", block, dims, rules):
            if name in ("router", "shared_gate"):
                self.add_module(name, module)
        for name, (count, out, into, bias) in experts(block, dims, rules).items():
            stacked = Stacked((count, out, into), bias, rules.block[name].transpose)
            self.add_module(name.removeprefix("moe."), stacked)
        self.correction = Vector(self.spec.experts) if self.spec.router.correction else None
        if self.spec.shared is not None:
            self.shared = Mlp("moe.shared", block, dims, rules, ops)

    def forward(self, x_BTD: Tensor, tap: Tap, routing_BTK: Tensor | None = None) -> Tensor:
        """What is added to the residual stream.

        Args:
            routing_BTK: the experts to take, int64, instead of those the router chooses; their weights are its own.
        """
        spec = self.spec.router
        logits_BTE = _cast(self._logits(x_BTD), spec)
        tap("moe.router", logits_BTE)
        scores_BTE = _score(logits_BTE, spec) if spec.order == "score_then_topk" else logits_BTE
        added_BTE = scores_BTE if self.correction is None else scores_BTE + self.correction.weight
        own_BTK = choose_experts(added_BTE.detach(), spec, self.spec.top_k)
        tap(CHOICE, own_BTK)
        chosen_BTK = own_BTK if routing_BTK is None else routing_BTK.to(own_BTK.device)
        weights_BTK = weigh(scores_BTE, chosen_BTK, spec, x_BTD.dtype)
        tap("moe.topk", weights_BTK)
        out_BTD = self._run_experts(x_BTD, weights_BTK, chosen_BTK)
        tap("moe.out", out_BTD)
        if self.spec.shared is None:
            return out_BTD
        shared_BTD: Tensor = self.shared(x_BTD, tap)
        if self.spec.shared.gate == "sigmoid":
            gate_BT1: Tensor = self.shared_gate(x_BTD)
            tap("moe.shared_gate", gate_BT1)
            shared_BTD = F.sigmoid(gate_BT1) * shared_BTD
        out_BTD = out_BTD + shared_BTD
        tap("mlp.out", out_BTD)
        return out_BTD

    def _logits(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        dtype = x_BTD.dtype if self.spec.router.dtype == "act" else wide
        bias = None if self.router.bias is None else self.router.bias.to(dtype)
        return F.linear(x_BTD.to(dtype), self.router.weight.to(dtype), bias)

    def _run_experts(self, x_BTD: Tensor, weights_BTK: Tensor, chosen_BTK: Tensor) -> Tensor:
        """[B, T, D], in the dtype of x: the sum of what the chosen experts give, times their weights."""
        x_ND, weights_NK, chosen_NK = (each.flatten(0, 1) for each in (x_BTD, weights_BTK, chosen_BTK))
        out_ND = torch.zeros_like(x_ND)
        for expert in torch.bincount(chosen_NK.flatten()).nonzero().flatten().tolist():
            at_M, tokens_M = torch.where(torch.eq(chosen_NK.T, expert))  # by rank, then token: HF's order of rows
            given_MD = self._run_expert(expert, x_ND[tokens_M]) * weights_NK[tokens_M, at_M, None]
            out_ND.index_add_(0, tokens_M, given_MD.to(out_ND.dtype))
        return out_ND.view_as(x_BTD)

    def _run_expert(self, expert: int, x_MD: Tensor) -> Tensor:
        if self.gate_up_rule is None:
            gate_MF, up_MF = self.gate.of(expert, x_MD), self.up.of(expert, x_MD)
        else:
            gate_MF, up_MF = split_gate_up(self.gate_up.of(expert, x_MD), self.gate_up_rule)
        spec = self.spec
        act_MF = self.ops.glu(
            gate_MF, up_MF, act=spec.act, alpha=spec.alpha, limit=spec.limit, up_offset=spec.up_offset
        )
        return self.down.of(expert, act_MF)


def choose_experts(scores_BTE: Tensor, spec: Router, top_k: int) -> Tensor:
    """[B, T, K], int64: the experts of the best scores, in the order of the spec."""
    if spec.groups is not None:
        scores_BTE = scores_BTE.masked_fill(~_in_best_groups(scores_BTE, spec.groups), float("-inf"))
    return torch.topk(scores_BTE, top_k, dim=-1, sorted=spec.sorted).indices


def _in_best_groups(scores_BTE: Tensor, groups: Groups) -> Tensor:
    """[B, T, E]: which experts stand in a group that is chosen from."""
    grouped = scores_BTE.view(*scores_BTE.shape[:-1], groups.n, -1)
    of_group = grouped.amax(-1) if groups.by == "max" else grouped.topk(2, dim=-1).values.sum(-1)
    best = torch.topk(of_group, groups.top, dim=-1, sorted=False).indices
    chosen = torch.zeros_like(of_group, dtype=torch.bool).scatter(-1, best, True)
    return chosen[..., None].expand(grouped.shape).flatten(-2)


def weigh(scores_BTE: Tensor, chosen_BTK: Tensor, spec: Router, dtype: torch.dtype) -> Tensor:
    """[B, T, K]: the weights of the chosen experts.

    Args:
        scores_BTE: logits, where the spec scores the chosen ones alone.
        dtype: of the activations.
    """
    weights_BTK = scores_BTE.gather(-1, chosen_BTK)
    if spec.order == "topk_then_score":
        weights_BTK = _score(weights_BTK, spec)
    if spec.renorm:
        sums = weights_BTK.sum(-1, keepdim=True)
        weights_BTK = weights_BTK / (sums + spec.renorm_eps if spec.renorm_eps else sums)
    weights_BTK = weights_BTK if spec.scale == 1.0 else weights_BTK * spec.scale
    return weights_BTK.to(dtype) if spec.weights_dtype == "act" else weights_BTK


def _cast(logits: Tensor, spec: Router) -> Tensor:
    return logits if spec.score_dtype == "act" else logits.to(torch.promote_types(logits.dtype, torch.float32))


def _score(logits: Tensor, spec: Router) -> Tensor:
    if (plugin := plugin_of("router", spec.score)) is not None:
        scores: Tensor = plugin.load()(logits)
        return scores
    return logits.sigmoid() if spec.score == "sigmoid" else F.softmax(logits, dim=-1)
