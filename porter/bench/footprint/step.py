"""A whole training step: what it holds all the time, what it keeps for backward, and its worst moment."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from porter.bench.footprint.head import write_head
from porter.bench.footprint.layer import table_bytes, write_layer
from porter.bench.footprint.parts import WIDE
from porter.bench.footprint.plan import OFFLOADED_DEPTH, Plan, check_countable
from porter.bench.footprint.tape import Cost, Tape
from porter.specs.blueprint import Blueprint
from porter.specs.schema import Block

# cuBLAS takes 32 MiB a handle on a Hopper, and forward and backward run in threads with a handle each.
WORKSPACE = 2 * 32 * 2**20


@dataclass(frozen=True)
class Kind:
    """Layers that keep the same.

    Attributes:
        layers: their indices.
        saved: bytes of each storage that one of them keeps.
    """

    layers: tuple[int, ...]
    saved: dict[str, int]

    @property
    def bytes(self) -> int:
        """Of one layer."""
        return sum(self.saved.values())


@dataclass(frozen=True)
class Moment:
    """A moment of a step, and what is alive then."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Footprint:
    """What a step holds, in bytes.

    Attributes:
        weights: parameters, one copy of what is tied.
        gradients: of all of them.
        optimizer: its states.
        fixed: the workspace of matrix products, rotation tables and masks.
        kinds: what layers keep for backward, all operations counted (checkpointing keeps their inputs alone).
        head: what the final norm, head and loss keep.
        loss: most that the final norm, head and loss hold, above the stream that they are given.
        kept: by the end of forward, all layers and the head, as the plan's checkpointing has it.
        moments: of the step, in order; the peak is the largest.
    """

    weights: int
    gradients: int
    optimizer: int
    fixed: int
    kinds: tuple[Kind, ...]
    head: dict[str, int]
    loss: int
    kept: int
    moments: tuple[Moment, ...]

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.bytes)


def footprint(blueprint: Blueprint, plan: Plan) -> Footprint:
    """What a training step of a model holds.

    Raises: UsageError: what the model computes is on no tape.
    """
    check_countable(blueprint)
    return _Step(blueprint, plan).footprint()


class _Step:
    def __init__(self, blueprint: Blueprint, plan: Plan) -> None:
        self.blueprint, self.plan = blueprint, plan
        tapes: dict[Block, Tape] = {}
        for block in blueprint.blocks:
            tapes.setdefault(block, write_layer(blueprint, block, plan))
        self.tapes = [tapes[block] for block in blueprint.blocks]
        costs = {block: tape.cost() for block, tape in tapes.items()}
        self.costs: list[Cost] = [costs[block] for block in blueprint.blocks]
        self.head_tape = write_head(blueprint, plan)
        self.head = self.head_tape.cost()
        self.stream = plan.rows * blueprint.dims.hidden * plan.element

    def footprint(self) -> Footprint:
        return Footprint(
            self.weights, self.gradients, self.optimizer, self.fixed, tuple(self._kinds()),
            self.head_tape.saved_storages(), max(self.head.forward_peak, self.head.backward_peak) - self.stream,
            self._kept(len(self.costs)) + self.head.saved, tuple(self._moments()),
        )  # fmt: skip

    @cached_property
    def weights(self) -> int:
        return self.blueprint.num_parameters * self.plan.element

    @property
    def gradients(self) -> int:
        return self.weights

    @cached_property
    def optimizer(self) -> int:
        states = {"adamw": 2, "adamw-foreach": 2, "sgd": 0, "none": 0}
        if self.plan.optimizer == "adamw-float32":
            return self.blueprint.num_parameters * WIDE * (3 if self.plan.element < WIDE else 2)
        return self.weights * states[self.plan.optimizer]

    @cached_property
    def fixed(self) -> int:
        """The workspace, rotation tables, and the mask where attention is computed eagerly."""
        plan, blocks = self.plan, self.blueprint.blocks
        ropes = dict.fromkeys(block.rope for block in blocks if block.rope is not None)
        tables = sum(table_bytes(rope, self.blueprint.dims, plan) for rope in ropes)
        eager = any(plan.attention == "eager" or block.attn.softcap is not None for block in blocks)
        masks = {block.attn.window for block in blocks} if eager else set()
        return WORKSPACE + tables + len(masks) * plan.batch * plan.tokens**2 * plan.element

    def _kinds(self) -> Iterator[Kind]:
        order = sorted(range(len(self.tapes)), key=lambda i: (self.costs[i].saved, i))
        for _, layers in groupby(order, key=lambda i: self.costs[i].saved):
            indices = tuple(layers)
            yield Kind(indices, self.tapes[indices[0]].saved_storages())

    def _kept(self, layers: int) -> int:
        """Bytes that the first so many layers keep while later ones run."""
        if self.plan.checkpointing == "none":
            return sum(cost.saved for cost in self.costs[:layers])
        on_device = min(layers, OFFLOADED_DEPTH) if self.plan.checkpointing == "offloaded" else layers
        return on_device * self.stream

    def _moments(self) -> Iterator[Moment]:
        always = self.weights + self.optimizer + self.fixed
        last = len(self.costs)
        forward = max(self._kept(i) + cost.forward_peak for i, cost in enumerate(self.costs))
        yield Moment("forward", always + forward)
        yield Moment("loss", always + self._kept(last) + self.head.forward_peak)
        yield Moment("loss, backward", always + self._kept(last) + self.head.backward_peak)
        done, worst = self.head.parameter_bytes, 0
        for i, cost in reversed([*enumerate(self.costs)]):
            worst = max(worst, self._kept(i) + done + self._backward_of(cost))
            done += cost.parameter_bytes
        yield Moment("layers, backward", always + worst)
        yield Moment("embedding, backward", always + done + self._embedding_backward())
        temporary = self.weights if self.plan.optimizer == "adamw-foreach" else 0
        yield Moment("optimizer", always + self.gradients + temporary)

    def _backward_of(self, cost: Cost) -> int:
        if self.plan.checkpointing == "none":
            return cost.backward_peak
        return max(self.stream + cost.forward_peak, self.stream + cost.backward_peak)

    def _embedding_backward(self) -> int:
        """The gradient of the table, that of the stream, and sums of rows that torch's kernel holds in float32."""
        dims, plan = self.blueprint.dims, self.plan
        rows = min(plan.rows, dims.vocab)
        return dims.vocab * self.blueprint.embed_width * plan.element + self.stream + rows * dims.hidden * WIDE
