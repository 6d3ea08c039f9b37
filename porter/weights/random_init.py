"""Seeded random weights, written as a checkpoint like any other.

`random` is what a fresh model has: normals of 0.02, norms of one, biases of zero. It hides offsets, casts and biases.
`random:stress` hides nothing: unit gain through each linear map, norm weights and biases away from one and zero.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from porter.specs.blueprint import Blueprint
from porter.specs.ledger import Entry, layout
from porter.weights.safetensors_files import DTYPES, TensorSpec, write_checkpoint

VERSION = 1  # of the recipe: a change makes other weights, so cached ones are left behind
_BLOCK_ELEMENTS = 8 * 2**20
_SPREAD = 0.3  # of norm weights and biases under stress
_CORRECTION = 0.05  # of what is added to a router's scores, which lie between 0 and 1: it decides some tokens' experts


def write_random(blueprint: Blueprint, config: Mapping[str, Any], folder: Path, *, kind: str, dtype: str) -> None:
    """Writes config.json and seeded weights of the blueprint's shapes to `folder`, a block at a time.

    Args:
        config: what config.json holds besides model_type and architectures.
        kind: random or random:stress.
        dtype: safetensors' name of the stored dtype: F32, BF16 or F16.
    """
    entries = {source: entry for entry in layout(blueprint).values() for source in entry.sources}
    offsets = {source: _norm_offset(blueprint, entry) for source, entry in entries.items()}
    specs = [TensorSpec(source, entry.shape, dtype) for source, entry in entries.items()]

    def blocks(source: str) -> Iterator[Tensor]:
        for block in _blocks(entries[source], source, stress=kind == "random:stress", offset=offsets[source]):
            yield block.to(DTYPES[dtype])

    write_checkpoint(folder, specs, blocks)
    head = {"model_type": blueprint.model_type, "architectures": [blueprint.architecture]}
    (folder / "config.json").write_text(json.dumps({**head, **config}, indent=2) + "\n", encoding="utf-8")


def _norm_offset(blueprint: Blueprint, entry: Entry) -> int:
    """The offset of the norm that a weight belongs to; its values centre on 1 - offset."""
    name = entry.parameter.module
    if ".q_norm" in name or ".k_norm" in name:
        qk_norm = blueprint.blocks[int(name.split(".")[1])].attn.qk_norm
        return qk_norm.offset if qk_norm else 0
    return blueprint.norm.offset


def _blocks(entry: Entry, source: str, *, stress: bool, offset: int) -> Iterator[Tensor]:
    mean, std = _distribution(entry, stress, offset)
    shape = entry.shape or (1,)
    row = math.prod(shape[1:])
    step = max(1, _BLOCK_ELEMENTS // row)
    called = entry.parameter.name if len(entry.sources) == 1 else source
    for start in range(0, shape[0], step):
        digest = hashlib.sha256(f"{called}:{start}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        count = min(step, shape[0] - start)
        block = torch.randn(count, *shape[1:], generator=generator) * std + mean
        yield block if entry.shape else block[0]


def _distribution(entry: Entry, stress: bool, offset: int) -> tuple[float, float]:
    """Mean and standard deviation of a parameter."""
    kind, shape = entry.parameter.kind, entry.parameter.shape
    if kind == "norm":
        return 1.0 - offset, _SPREAD if stress else 0.0
    if kind == "bias":
        return 0.0, _SPREAD if stress else 0.0
    if slot := entry.parameter.slot:
        return (slot.stressed, abs(slot.stressed) * _SPREAD) if stress else (slot.fresh, 0.0)
    if kind == "correction":
        return 0.0, _CORRECTION if stress else 0.0
    return 0.0, shape[-1] ** -0.5 if stress else 0.02
