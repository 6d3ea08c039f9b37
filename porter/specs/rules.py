"""The table from porter's names to a checkpoint's: where a tensor lies, and how it lies there."""

from typing import Any, Literal

from pydantic import Field, model_validator

from porter.specs.kinds import Strict


class WeightRule(Strict):
    """Where a tensor lies in the checkpoint; `.weight` and `.bias` are implied."""

    src: tuple[str, ...] = Field(
        strict=False,
        description="Source module; several are alternatives, the first present wins. A path that ends in ! is the "
        "tensor itself, its bias beside it with _bias. {e}: one for each expert, {h}: for each head, stacked. "
        "A path that starts with / does not stand below `layer`; {i} is the layer's number there.",
    )
    transpose: bool = Field(False, description="Stored [in, out] (GPT-2's Conv1D).")
    order: tuple[str, ...] = Field(
        (), strict=False, description="Parts of a fused projection, in the order of its rows."
    )
    groups: Literal["1", "4", "heads", "kv_heads", "rows"] = Field("1", description="How often the order repeats: once, four times (CodeGen's shards), by head, or by row.")  # fmt: skip  # noqa: E501
    bias: str | None = Field(None, description="Where the bias lies, if not beside the weight; a path that ends in ! is the tensor itself.")  # fmt: skip  # noqa: E501
    parts: dict[str, str] = Field({}, description="Of a fused projection that is stored in parts: what stands for {part} in src. Gives the order, too.")  # fmt: skip  # noqa: E501
    row: bool = Field(False, description="A vector stored as the one row of a matrix (ERNIE 4.5).")
    flat: bool = Field(False, description="Stored with the experts' rows below each other, [experts * rows, …] (DBRX).")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, str | list | tuple):
            value = {"src": value}
        if isinstance(value, dict):
            value = dict(value)
            if isinstance(value.get("src"), str):
                value["src"] = (value["src"],)
            value["groups"] = str(value.get("groups", 1))
            value.setdefault("order", list(value.get("parts") or ()))
        return value


class Weights(Strict):
    """The table from porter's names to a checkpoint's."""

    strip: tuple[str, ...] = Field((), strict=False, description="Prefixes that a checkpoint may have or lack.")
    layer: str = Field("model.layers.{i}", description="Prefix of layer i.")
    globals: dict[str, WeightRule] = Field(description="embed, pos, project_in, embed_norm, final_norm, project_out, head.")  # fmt: skip  # noqa: E501
    block: dict[str, WeightRule] = Field(description="attn.norm, attn.q, attn.qkv, mlp.gate, …; relative to `layer`.")
    keep_fp32: tuple[str, ...] = Field((), strict=False, description="Names that stay float32 in a narrower model, as HF keeps them: moe.router.")  # fmt: skip  # noqa: E501
    ignore: tuple[str, ...] = Field((), strict=False, description="Globs of checkpoint tensors that are no parameters.")

    @property
    def groups_of_qkv(self) -> str:
        """How often the order of a fused qkv repeats; 1 where none is fused."""
        return self.block["attn.qkv"].groups if "attn.qkv" in self.block else "1"

    @model_validator(mode="after")
    def _consistent(self) -> "Weights":
        if "{i}" not in self.layer:
            raise ValueError(f"layer {self.layer!r} has no {{i}}, the number of the layer")
        for name, rule in self.block.items():
            parts = ["k", "q", "v"] if name.endswith(".qkv") else ["gate", "up"] if name.endswith(".gate_up") else []
            if sorted(rule.order) != parts:
                needed = f"the order of {', '.join(parts)}" if parts else "no order; it is no fused projection"
                raise ValueError(f"the rule of {name} needs {needed}, not {list(rule.order)}")
            if not name.endswith(".qkv") and rule.groups in ("4", "heads", "kv_heads"):
                raise ValueError(f"the rule of {name} repeats by row or once, not by head")
            if name.endswith(".qkv") and rule.groups == "rows":
                raise ValueError(f"the rule of {name} repeats by head or once, not by row")
        return self
