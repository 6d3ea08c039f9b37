"""The feed-forward branch of a layer, and the expert of a mixture that every token goes to."""

from collections.abc import Callable

from torch import Tensor, nn

from porter.models.activations import Activation
from porter.models.attention import Tap
from porter.models.modules import Linear, Normalize, make_norms, make_projections, split_gate_up
from porter.models.ops import Ops
from porter.specs.blueprint import activation_tensors
from porter.specs.plugins import plugin_of
from porter.specs.rules import Weights
from porter.specs.schema import Block, Dims, Norm


class Mlp(nn.Module):
    """Projections and activation; of a layer with experts, the norms of `mlp` alone, and `moe.shared` besides."""

    gate: Linear
    up: Linear
    gate_up: Linear
    down: Linear
    inner_norm: Normalize

    def __init__(
        self, scope: str, block: Block, dims: Dims, rules: Weights, ops: Ops, norm: Norm | None = None
    ) -> None:
        """
        Args:
            scope: mlp or moe.shared, the prefix of its names.
            norm: of the norms around the branch; None: it has none of its own.
        """
        super().__init__()
        self.scope, self.ops = scope, ops
        self.act_name = block.moe.act if block.moe and scope == "moe.shared" else block.mlp.act
        self.gated = block.mlp.gated or scope == "moe.shared"
        self.gate_up_rule = rules.block.get(f"{scope}.gate_up") if self.gated else None
        if norm is not None:
            for name, module in make_norms(scope, block, dims, norm, ops):
                self.add_module(name, module)
        for name, linear in make_projections(scope, block, dims, rules):
            self.add_module(name, linear)
        self.normalizes_act = scope == "mlp" and block.mlp.inner_norm
        own_tensors = scope == "mlp" and bool(activation_tensors(block))
        self.act: Callable[[Tensor], Tensor] | None = Activation(self.act_name) if own_tensors else None
        if (plugin := plugin_of("activation", self.act_name)) is not None:
            self.act = plugin.load(ops.name)

    def forward(self, x_BTD: Tensor, tap: Tap) -> Tensor:
        if not self.gated:
            up_BTF: Tensor = self.up(x_BTD)
            tap(f"{self.scope}.up", up_BTF)
            act_BTF = self.ops.activation(up_BTF, self.act_name) if self.act is None else self.act(up_BTF)
        else:
            if self.gate_up_rule is None:
                gate_BTF, up_BTF = self.gate(x_BTD), self.up(x_BTD)
            else:
                gate_BTF, up_BTF = split_gate_up(self.gate_up(x_BTD), self.gate_up_rule)
            tap(f"{self.scope}.gate", gate_BTF)
            tap(f"{self.scope}.up", up_BTF)
            if self.act is None:
                act_BTF = self.ops.glu(gate_BTF, up_BTF, act=self.act_name)
            else:
                act_BTF = self.act(gate_BTF) * up_BTF
        tap(f"{self.scope}.act", act_BTF)
        if self.normalizes_act:
            act_BTF = self.inner_norm(act_BTF)
            tap(f"{self.scope}.inner_norm", act_BTF)
        out_BTD: Tensor = self.down(act_BTF)
        tap(f"{self.scope}.out", out_BTD)
        return out_BTD
