"""The gradients of a tiny model; its reference is opened once for several runs."""

from functools import lru_cache

import torch

from porter.comparison.gradients.lanes import PortBackward
from porter.comparison.gradients.stage import BackwardLanes, golden_inputs, run_backward
from porter.comparison.report import NodeDiff
from porter.comparison.stages import Selection
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import Ops, make_ops
from porter.references.hf import HfReference
from tests.models.tiny import random_ids, tiny

CPU = torch.device("cpu")


@lru_cache(maxsize=4)
def references(family: str, dtype: torch.dtype) -> tuple[HfReference, HfReference]:
    """The reference and its golden."""
    build = tiny(family)
    reference = HfReference(build.reference_blueprint, build.checkpoint(), dtype, CPU)
    return reference, reference.golden_of(build.checkpoint())


def run(
    family: str,
    *overrides: str,
    dtype: str = "float32",
    ops: str | Ops = "reference",
    tokens: int = 24,
    layers: tuple[int, ...] = (),
    first_bad: bool = False,
) -> list[NodeDiff]:
    """The gradients of a tiny model on seeded ids, in the order of the backward pass."""
    build, kind = tiny(family, *overrides, dtype=dtype, weights=str(tiny(family).checkpoint())), getattr(torch, dtype)
    reader, ids_1T, dims = build.reader(), random_ids(build, tokens), build.blueprint.dims
    chosen = ops if isinstance(ops, Ops) else make_ops(ops)  # type: ignore[arg-type]
    decoder = Decoder(build.blueprint, Streamed(build.blueprint, chosen, reader, kind, CPU))
    reference, golden = references(family, kind)
    port = PortBackward(decoder, kind, CPU)
    lanes = BackwardLanes.of(build.blueprint, golden, reference, port, reader.ledger)
    inputs = golden_inputs(golden, ids_1T, dims, kind)
    selection = Selection(frozenset(layers or range(dims.layers)), whole=not layers, first_bad=first_bad)
    return run_backward(dtype, lanes, ids_1T, inputs, selection).nodes


def failing(nodes: list[NodeDiff]) -> list[str]:
    return [node.name.removeprefix("grad:") for node in nodes if node.status == "FAIL"]
