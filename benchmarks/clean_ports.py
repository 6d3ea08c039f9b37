"""Ports without a fault, each compared with HF eager node by node: porter's executor and fused ops, HF's sdpa and flex.

What HF computes with another of its own attention implementations is the judgement of people who do not know porter of
what a right port may differ by.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from porter.comparison.diff import diff
from porter.comparison.names import StageName
from porter.comparison.preflight import load_tokenizer
from porter.comparison.prompts import read_prompts
from porter.comparison.report import NodeDiff
from porter.comparison.stages import Lanes, run_stage, select_layers
from porter.models.build import Build, plan_build
from porter.references.hf import HfReference
from porter.weights.reader import SharedTensors
from porter.weights.safetensors_files import open_checkpoint
from porter.weights.sources import find_weights

OPS = {"executor": "reference", "fused": "triton"}
ATTENTION = {"sdpa": "sdpa", "flex": "flex_attention"}
PORTS = (*OPS, *ATTENTION)
STAGE: dict[str, StageName] = {"float32": "semantics", "bfloat16": "precision", "float16": "precision"}


class NoSuchPort(Exception):
    """The model or the device does not have that port; the reason."""


@dataclass(frozen=True)
class Model:
    """A family, whose size is tiny, or the size of a real checkpoint.

    Attributes:
        weights: random:stress, demo, a folder or a .gguf.
    """

    name: str
    size: str | None
    weights: str


@dataclass(frozen=True)
class Unit:
    """One comparison: a port of a model in a dtype."""

    model: Model
    port: str
    dtype: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model.name, self.port, self.dtype


def compare(unit: Unit, device: str, tokens: int | None) -> Sequence[NodeDiff]:
    """The nodes of one port, judged by the stage of its dtype.

    Raises:
        NoSuchPort: the model or the device does not have it.
        PorterError: the weights are not there, or the comparison could not be made.
    """
    missing = _why_not(unit, device)
    if missing:
        raise NoSuchPort(missing)
    model, ops = unit.model, OPS.get(unit.port, "reference")
    build = plan_build(
        model.name, size=model.size, weights=model.weights, overrides=(), dtype=unit.dtype, ops=ops, device=device,
        prompt=None, tokens=tokens,
    )  # fmt: skip
    if unit.port in OPS:
        return diff(build, stages=[STAGE[unit.dtype]]).nodes
    return _compare_attention(build, ATTENTION[unit.port])


def _why_not(unit: Unit, device: str) -> str | None:
    if unit.port == "fused" and device == "cpu" and (unit.dtype != "float32" or unit.model.size != "tiny"):
        return "Triton's interpreter is slow"
    return None


def _compare_attention(build: Build, attention: str) -> Sequence[NodeDiff]:
    """HF with `attention` as a port against HF eager."""
    device, dtype, folder = torch.device(build.device), getattr(torch, build.dtype), build.checkpoint()
    tensors = SharedTensors(open_checkpoint(folder))
    reference = HfReference(build.blueprint, folder, dtype, device, tensors=tensors)
    _check_support(reference, attention)
    port = HfReference(build.blueprint, folder, dtype, device, tensors=tensors)
    torch.compiler.reset()  # past its limit of compilations, flex would run as plain torch
    port.model.config._attn_implementation = attention  # before `start`, which makes the masks
    lanes = Lanes(build.blueprint.dims, reference.golden_of(folder), reference, port, port)
    (prompt,) = read_prompts(build.blueprint, load_tokenizer(folder), build.prompt, None, build.tokens)
    selection = select_layers("all", build.blueprint.dims.layers)
    return run_stage(STAGE[build.dtype], build.dtype, lanes, torch.tensor([prompt.ids]), selection).nodes


def _check_support(reference: HfReference, attention: str) -> None:
    model = reference.model
    if not {"sdpa": model._supports_sdpa, "flex_attention": model._supports_flex_attn}[attention]:
        raise NoSuchPort(f"{type(model).__name__} has no {attention}")


def tiny(family: str) -> Model:
    """A family's tiny size on weights that leave no part of the spec unused."""
    return Model(family, "tiny", "random:stress")


def real(text: str) -> Model:
    """A real checkpoint, named `size` (its demo weights) or `size=WEIGHTS`.

    Raises:
        PorterError: its weights are not there.
    """
    name, _, weights = text.partition("=")
    find_weights(weights or "demo", size=name)
    return Model(name, None, weights or "demo")
