"""A dump as a side of a comparison: it is asked for what it holds, and computes nothing."""

import torch
from torch import Tensor

from porter.comparison.lanes import Nodes
from porter.errors import ArtifactError
from porter.models.moe import Routed
from porter.references.dump import Dump


class DumpLane:
    """A lane that gives what a dump holds, whatever input it is handed."""

    def __init__(self, dump: Dump, num_layers: int, device: torch.device) -> None:
        self.dump, self.num_layers, self.device, self.dtype = dump, num_layers, device, dump.dtype
        self.routing: Routed | None = None  # a dump does not tell

    def start(self, ids_BT: Tensor) -> None:
        pass

    def embed(self) -> Nodes:
        return self.dump.unit("embed", self.device)

    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Nodes:
        nodes = self.dump.unit(f"layers.{index}", self.device)
        nodes.pop("resid_pre", None)  # what it is given, not what it makes
        return nodes

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        return self.dump.read(f"layers.{index}.resid_post", self.device)

    def head(self, x_BTD: Tensor) -> Nodes:
        return self.dump.unit("head", self.device)

    def entry(self, index: int) -> Tensor | None:
        """[1, T, D], what the dump's own layer was given, or its head for index = num_layers; None: not recorded."""
        name = self.dump.entry(index, self.num_layers)
        return None if name is None else self.dump.read(name, self.device)

    def after(self, index: int) -> Tensor | None:
        """[1, T, D], the residual stream after a layer; None: not recorded."""
        name = f"layers.{index}.resid_post"
        return self.dump.read(name, self.device) if self.dump.holds(name) else None

    def tokens_of(self, node: str, value: Tensor, at: Tensor) -> Tensor:
        """A node at some tokens, which the dump holds."""
        held = self.dump.manifest.at.get(node)
        if held is None:
            return value[:, at]
        where = {token: row for row, token in enumerate(held)}
        return value[:, [where[int(token)] for token in at]]

    def release(self) -> None:
        pass

    def describe(self) -> str:
        return self.dump.describe()


def shaped_as(lane: object, name: str, value: Tensor, golden: Tensor) -> Tensor:
    """A side's node in golden's shape; trailing axes may be flattened or split, as they lie alike in memory.

    Raises:
        ArtifactError: a dump has another shape.
    """
    if value.shape == golden.shape or not isinstance(lane, DumpLane):
        return value
    if value.shape[:2] == golden.shape[:2] and value.numel() == golden.numel():
        return value.reshape(golden.shape)
    raise ArtifactError(
        f"{lane.dump.folder}: {name} is {list(value.shape)}",
        f"{list(golden.shape)}, [batch, token, head, dim] where there are heads",
        "Transpose it before it is recorded.",
    )


def check_embedding(lane: DumpLane, value: Tensor, golden: Tensor, ids_BT: Tensor) -> None:
    """Refuses a dump whose embedding rows are not those of its tokens: it ran other tokens, or other weights.

    A wrong scale, or rounding, leaves the direction of a row as it is.

    Raises:
        ArtifactError: a row points elsewhere.
    """
    cosine_T = torch.cosine_similarity(value[0].double(), golden[0].double(), dim=-1)
    if bool((cosine_T.nan_to_num(nan=0.0) < _SAME_DIRECTION).any()):
        token = int(cosine_T.nan_to_num(nan=0.0).argmin())
        count = int((cosine_T.nan_to_num(nan=0.0) < _SAME_DIRECTION).sum())
        wrong = f"{lane.dump.folder}: embed.out of {count} of {len(cosine_T)} tokens is not the embedding of the ids"
        raise ArtifactError(
            f"{wrong} in its manifest, first of id {int(ids_BT[0, token])} at token {token}",
            "the rows of these weights for these tokens, whatever their scale",
            "Record the ids and the weights that were run.",
        )


_SAME_DIRECTION = 0.9  # bfloat16 leaves 0.9999; rows of two tokens have 0.3 and less in the demo checkpoints
