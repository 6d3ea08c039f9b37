"""The top level of a family file, as the schema of its keys."""

from typing import Any

from pydantic import Field

from porter.specs.kinds import Strict
from porter.specs.rules import Weights
from porter.specs.schema import Block, Dims, Embed, Head, Norm, Size, Tokenizer


class Pattern(Strict):
    """An axis that varies over the layers: `by` gives one case a layer, each case is merged onto `block`."""

    by: str | list[str] = Field(description="Expression or list: one case name for each layer.")
    cases: dict[str, Block | None] = Field(description="Case name -> the part of `block` that differs.")


class Document(Strict):
    """The top level of a family file."""

    extends: str | None = Field(None, description="Parent family; this file is merged onto it. Default: _base.")
    model_type: str = Field(description="model_type of config.json.")
    architecture: str = Field(description="HF's class, for example GemmaForCausalLM.")
    plugins: list[str] = Field([], description="Keys of the plugins that the spec needs: mixers, activations.")
    requires: list[str] = Field([], description="Expressions that must hold, else the config is refused.")
    config_defaults: dict[str, Any] = Field({}, description="Fills config keys that are absent; null stays null.")
    ignore_config: dict[str, str | None] = Field(
        {}, description="Config key -> why no field reads it; null takes back what the parent ignores."
    )
    dims: Dims
    embed: Embed
    norm: Norm
    block: Block
    final_norm: bool = Field(True, description="A norm after the last layer.")
    head: Head
    patterns: dict[str, Pattern | None] = Field(
        {}, description="Name -> pattern, independent of each other; null removes the parent's."
    )
    weights: Weights
    tokenizer: Tokenizer
    sizes: dict[str, Size] = Field(description="Size name -> frozen config. Every family has a tiny size.")


EVALUATED = ("dims", "embed", "norm", "block", "final_norm", "head", "patterns", "tokenizer")  # may hold expressions
RULES = {
    "globals": ("embed", "pos", "project_in", "embed_norm", "final_norm", "project_out", "head"),
    "block": (
        "attn.norm", "attn.q", "attn.k", "attn.v", "attn.qkv", "attn.o", "attn.q_norm", "attn.k_norm",
        "attn.inner_norm", "attn.post_norm", "attn.after_norm", "attn.sinks",
        "attn.q_a", "attn.q_a_norm", "attn.q_b", "attn.kv_a", "attn.kv_a_norm", "attn.kv_b",
        "mlp.norm", "mlp.gate", "mlp.up", "mlp.gate_up", "mlp.down", "mlp.act", "mlp.inner_norm", "mlp.post_norm",
        "mlp.after_norm",
        "moe.router", "moe.correction", "moe.gate", "moe.up", "moe.gate_up", "moe.down",
        "moe.shared.gate", "moe.shared.up", "moe.shared.gate_up", "moe.shared.down", "moe.shared_gate",
    ),
}  # fmt: skip
