"""The checkpoint's tensors by the node they make: fused ones taken apart, transposed ones turned round."""

from collections.abc import Iterator

import torch
from torch import Tensor

from porter.models.attention import split_qkv
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

_CPU = torch.device("cpu")


def layer_parts(reader: WeightReader, blueprint: Blueprint, layer: int) -> dict[str, Tensor]:
    """attn.q, mlp.down, attn.norm, …: [out, in] or [width], float32, of one layer."""
    prefix = f"layers.{layer}."
    found: dict[str, Tensor] = {}
    for parameter in reader.ledger.entries:
        if parameter.startswith(prefix) and parameter.endswith(".weight"):
            name = parameter.removeprefix(prefix).removesuffix(".weight")
            found.update(_taken_apart(name, read_part(reader, parameter), blueprint))
    return {name: value for name, value in found.items() if value.ndim in (1, 2)}


def read_part(reader: WeightReader, parameter: str) -> Tensor:
    """[out, in], float32, whichever way it is stored."""
    value = reader.read(parameter, torch.float32, _CPU)
    return value.T if reader.ledger.entries[parameter].transpose and value.ndim == 2 else value


def _taken_apart(name: str, value: Tensor, blueprint: Blueprint) -> Iterator[tuple[str, Tensor]]:
    if name == "attn.qkv":
        rows = torch.arange(len(value))[None]
        parts = split_qkv(rows, blueprint.dims, blueprint.weights.block[name])
        yield from ((f"attn.{part}", value[each.flatten()]) for part, each in zip("qkv", parts, strict=True))
    elif name == "mlp.gate_up":
        order = blueprint.weights.block[name].order
        yield from ((f"mlp.{part}", each) for part, each in zip(order, value.chunk(len(order)), strict=True))
    else:
        yield name, value
