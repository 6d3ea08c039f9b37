"""The gradients of all prompts of a run, in one dtype."""

from collections.abc import Callable, Sequence

import torch

from porter.comparison.cached_lane import Models
from porter.comparison.gradients.lanes import BackwardLane
from porter.comparison.gradients.stage import BackwardLanes, golden_inputs, run_backward
from porter.comparison.lanes import Lane
from porter.comparison.merge import merge_nodes
from porter.comparison.report import NodeDiff, Prompt
from porter.comparison.stages import Selection
from porter.specs.ledger import Ledger


def run_gradients(
    dtype: str,
    port: BackwardLane,
    ledger: Ledger,
    models: Models,
    golden: Lane,
    prompts: Sequence[Prompt],
    selection: Selection,
    *,
    advance: Callable[[str], None] = lambda unit: None,
) -> list[NodeDiff]:
    """Every prompt of two tokens or more, from the loss back; of each gradient the worst prompt.

    Args:
        port: in that dtype.
        ledger: which tensor of the checkpoint fills each of its parameters.
        golden: for the forward pass, which may come from a cache.
    """
    lanes = BackwardLanes.of(models.blueprint, models.golden, models.reference, port, ledger)
    nodes: dict[str, NodeDiff] = {}
    for index, prompt in enumerate(prompts):
        if prompt.length > 1:
            ids_1T = torch.tensor([prompt.ids])
            inputs = golden_inputs(golden, ids_1T, lanes.dims, models.dtype)
            merge_nodes(nodes, run_backward(dtype, lanes, ids_1T, inputs, selection, advance), index)
    return list(nodes.values())
