"""Is the spec right? The executor's layers and logits against HF's ordinary eager forward pass, bit for bit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from porter.comparison.preflight import load_tokenizer
from porter.comparison.prompts import read_prompts
from porter.models.build import Build, plan_build
from porter.models.decoder import Decoder, Resident
from porter.models.ops import make_ops
from porter.references.pinned import find_layers, load_pinned, ordinary_forward

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class ExactRow:
    """One model in one dtype.

    Attributes:
        layers: how many layer outputs are bit-equal, of num_layers.
        logits: whether the logits are.
        difference: relative L2 of the first unequal tensor; 0.0 when all are equal.
        first: what differs first: layers.3, logits; None when all are equal.
    """

    name: str
    model_type: str
    dtype: str
    tokens: int
    layers: int
    num_layers: int
    logits: bool
    difference: float
    first: str | None

    @property
    def exact(self) -> bool:
        return self.first is None


def check_exactness(build: Build, dtypes: Sequence[str] = DTYPES, tokens: int = 320) -> Iterator[ExactRow]:
    """A row for each dtype; both sides whole, each on its own hidden states, no bf16 product replaced by another."""
    folder = build.checkpoint()
    prompt = read_prompts(build.blueprint, load_tokenizer(folder), None, None, tokens)[0]
    for dtype in dtypes:
        yield _check(build, folder, dtype, torch.tensor([prompt.ids]))


def plan_exact(spec: str, size: str, weights: str = "random:stress") -> Build:
    """The build that `porter specs exact` checks: float32 weights, so that bfloat16 rounds them."""
    return plan_build(
        spec, size=size, weights=weights, overrides=(), dtype="float32", ops="reference", device="cpu",
        prompt=None, tokens=None,
    )  # fmt: skip


@torch.no_grad()
def _check(build: Build, folder: Path, dtype: str, ids_BT: Tensor) -> ExactRow:
    kind, cpu = getattr(torch, dtype), torch.device("cpu")
    model = load_pinned(folder, kind, cpu)
    expected, expected_logits_BTV = ordinary_forward(model, find_layers(model, build.blueprint.dims.layers)[1], ids_BT)
    del model  # two whole models need not lie in memory
    decoder = Decoder(build.blueprint, Resident(build.blueprint, make_ops("reference"), build.reader(), kind, cpu))
    found: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor) -> None:
        if name.endswith("resid_post"):
            found[name] = value

    logits_BTV = decoder(ids_BT, tap=keep)
    num_layers = build.blueprint.dims.layers
    pairs = [(f"layers.{i}", found[f"layers.{i}.resid_post"], expected[i]) for i in range(num_layers)]
    equal = [torch.equal(own, theirs) for _, own, theirs in pairs]
    same_logits = torch.equal(logits_BTV, expected_logits_BTV)
    unequal = [pair for pair, same in zip(pairs, equal, strict=True) if not same]
    if not same_logits:
        unequal.append(("logits", logits_BTV, expected_logits_BTV))
    first = unequal[0] if unequal else None
    return ExactRow(
        name=build.name, model_type=build.blueprint.model_type, dtype=dtype, tokens=ids_BT.shape[1], layers=sum(equal),
        num_layers=num_layers, logits=same_logits, difference=_relative(first[1], first[2]) if first else 0.0,
        first=first[0] if first else None,
    )  # fmt: skip


def _relative(own: Tensor, theirs: Tensor) -> float:
    size = torch.linalg.vector_norm(theirs.double())
    return float(torch.linalg.vector_norm(own.double() - theirs.double()) / size)
