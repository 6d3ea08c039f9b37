"""Operations in the order of a forward pass, what each keeps for backward, and what is alive at the worst moment.

Storages have names; a view is its storage. A storage lives until its last reader has run, or until the backward of the
last operation that keeps it. In backward each operation turns the gradient of what it made into gradients of what it
read; a second gradient of the same storage is added to the first. That is torch.autograd's bookkeeping (Rule: saved
tensors are released as soon as their node has run), so `saved` is exact, to the byte, where the tape names the
operations that run; tests hold it against torch.autograd.graph.saved_tensors_hooks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

INPUT = "x"  # the storage that a tape is given


@dataclass(frozen=True)
class Operation:
    """One step of a forward pass.

    Attributes:
        reads: storages it reads.
        makes: the storage it writes, and its bytes; "" and 0 where its result is a view or too small to count.
        saves: storages that its backward reads.
        grads: of reads: those whose gradient its backward computes.
        hands_on: that gradient is the one of the result, not a new one (an addition's).
        ready: its gradients were computed in forward and are among what it saves.
        parameter_bytes: of the gradients of its parameters.
        temporary: bytes beside those that forward needs while it runs.
        backward_temporary: the same of backward.
    """

    reads: tuple[str, ...]
    makes: str
    bytes: int
    saves: tuple[str, ...] = ()
    grads: tuple[str, ...] = ()
    hands_on: bool = False
    ready: bool = False
    parameter_bytes: int = 0
    temporary: int = 0
    backward_temporary: int = 0


@dataclass(frozen=True)
class Cost:
    """What a tape holds, in bytes.

    Attributes:
        saved: by the end of forward, for backward.
        forward_peak: most that is alive in forward, its input included.
        backward_peak: most that is alive in backward: what is saved and not yet released, gradients, and gradients of
            parameters as they come.
        parameter_bytes: of the gradients of its parameters.
    """

    saved: int
    forward_peak: int
    backward_peak: int
    parameter_bytes: int


@dataclass
class Tape:
    """Operations, written one after the other.

    Attributes:
        input_bytes: of what it is given, INPUT.
        operations: so far.
        sizes: bytes of each storage.
    """

    input_bytes: int
    operations: list[Operation] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes[INPUT] = self.input_bytes

    def write(
        self,
        name: str,
        size: int,
        reads: Sequence[str],
        *,
        saves: Sequence[str] = (),
        grads: Sequence[str] | None = None,
        hands_on: bool = False,
        ready: bool = False,
        parameter_bytes: int = 0,
        temporary: int = 0,
        backward_temporary: int = 0,
    ) -> str:
        """Adds an operation and gives the name of what it makes; grads are all that it reads unless said otherwise."""
        name = name if name not in self.sizes else f"{name}.{len(self.operations)}"
        self.sizes[name] = size
        wanted = tuple(reads if grads is None else grads)
        saved = tuple(dict.fromkeys(name if each == "result" else each for each in saves))
        self.operations.append(
            Operation(
                tuple(reads), name, size, saved, wanted, hands_on, ready, parameter_bytes, temporary, backward_temporary
            )
        )
        return name

    def saved_storages(self) -> dict[str, int]:
        """Bytes of each storage that is kept, in the order in which they are first kept."""
        kept = dict.fromkeys(name for operation in self.operations for name in operation.saves)
        return {name: self.sizes[name] for name in kept}

    def cost(self) -> Cost:
        """What it holds, run forward and backward."""
        return Cost(
            sum(self.saved_storages().values()),
            _forward_peak(self),
            _backward_peak(self),
            sum(operation.parameter_bytes for operation in self.operations),
        )


def _forward_peak(tape: Tape) -> int:
    last = {name: i for i, operation in enumerate(tape.operations) for name in (*operation.reads, operation.makes)}
    kept = tape.saved_storages().keys()
    alive, peak = {INPUT: tape.input_bytes}, tape.input_bytes
    for i, operation in enumerate(tape.operations):
        alive[operation.makes] = operation.bytes
        peak = max(peak, sum(alive.values()) + operation.temporary)
        for name in [each for each in alive if last.get(each, i) <= i and each not in kept and each != INPUT]:
            del alive[name]
    return peak


class _Gradients:
    """The gradients that are alive in backward; one may stand for several storages."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}  # storage -> number of its gradient
        self.bytes: dict[int, int] = {}

    def total(self) -> int:
        return sum(self.bytes[number] for number in set(self.of.values()))

    def new(self, storage: str, size: int) -> None:
        """A gradient of its own, or one that is added in place to what the storage has."""
        if storage not in self.of or list(self.of.values()).count(self.of[storage]) > 1:
            number = len(self.bytes)
            self.bytes[number], self.of[storage] = size, number

    def same(self, storage: str, as_of: str) -> None:
        if storage not in self.of:
            self.of[storage] = self.of[as_of]

    def take(self, storage: str) -> None:
        self.of.pop(storage, None)


def _backward_peak(tape: Tape) -> int:
    operations = tape.operations
    first = {name: i for i, operation in reversed([*enumerate(operations)]) for name in operation.saves}
    saved = tape.saved_storages()
    gradients, parameters = _Gradients(), 0
    gradients.new(operations[-1].makes, operations[-1].bytes)
    peak = 0
    for i, operation in reversed([*enumerate(operations)]):
        if operation.makes not in gradients.of:
            continue
        fresh = sum(tape.sizes[name] for name in operation.grads) + operation.parameter_bytes
        now = sum(saved.values()) + gradients.total() + parameters + operation.backward_temporary
        peak = max(peak, now + (0 if operation.hands_on or operation.ready else fresh))
        parameters += operation.parameter_bytes
        for name in operation.grads:
            if operation.hands_on:
                gradients.same(name, operation.makes)
            else:
                gradients.new(name, tape.sizes[name])
        gradients.take(operation.makes)
        for name in [each for each in saved if first[each] >= i]:
            del saved[name]
    return peak
