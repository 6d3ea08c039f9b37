"""Who trains: HuggingFace's model as it is, compiled, with Liger's patches, with porter's, and porter's compiled.

Each gets a model of its own whose parameters all share, so that one set of weights and one optimizer is in memory and
a peak is that of one model. Peers are used as their own documentation says.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional

from porter.bench.training.cases import EAGER, PORTER
from porter.errors import UsageError, closest

HeadLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden [N, H], weight [V, H], target [N] -> the mean loss


def eager_head_loss(hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor) -> Tensor:
    """All logits, in float32, as HF's ForCausalLMLoss has them."""
    return functional.cross_entropy(functional.linear(hidden_NH, weight_VH).float(), target_N, ignore_index=-100)


@dataclass
class Patched:
    """A model ready to train.

    Attributes:
        module: what is called.
        head_loss: of Medusa heads.
        arguments: beside the batch.
        names: what a patch put into a module of transformers, by the module's name: there while this model runs.
    """

    module: Any
    head_loss: HeadLoss = eager_head_loss
    arguments: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Within, the modules of transformers have the patch's names; other models must not see them."""
        before = {
            place: {name: getattr(sys.modules[place], name) for name in each} for place, each in self.names.items()
        }
        _set(self.names)
        try:
            yield
        finally:
            _set(before)


def _set(names: Mapping[str, Mapping[str, Any]]) -> None:
    for place, each in names.items():
        for name, value in each.items():
            setattr(sys.modules[place], name, value)


class Prepare(Protocol):
    """Makes a HuggingFace model ready."""

    def __call__(self, model: Any) -> Patched:
        """Raises: ImportError: the peer is not installed."""


def _as_it_is(model: Any) -> Patched:
    return Patched(model)


def _compiled(model: Any) -> Patched:
    return Patched(_compile(model))


def _compile(model: Any) -> Any:
    import torch

    return torch.compile(model, dynamic=False)


def _liger(model: Any) -> Patched:
    """liger-kernel's patch of an instance; what it writes into the modeling file's module is taken out again."""
    patch = import_module("liger_kernel.transformers.monkey_patch")._apply_liger_kernel_to_instance
    fused: Any = import_module("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    place = type(model).__module__
    before = dict(vars(sys.modules[place]))
    patch(model=model)
    names = {
        name: value for name, value in vars(sys.modules[place]).items() if name in before and before[name] is not value
    }
    _set({place: {name: before[name] for name in names}})

    def head_loss(hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor) -> Tensor:
        found = fused(hidden_NH, weight_VH, target_N)
        loss: Tensor = found if isinstance(found, Tensor) else found[0]  # its z-loss may come along
        return loss

    return Patched(model, head_loss, names={place: names})


def _porter(model: Any, **arguments: Any) -> Patched:
    from porter.patching.patch import patch
    from porter_kernels.linear_cross_entropy import linear_cross_entropy

    def head_loss(hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor) -> Tensor:
        loss = linear_cross_entropy(hidden_NH, weight_VH, target_N, **arguments)
        assert isinstance(loss, Tensor)
        return loss

    patch(model)
    return Patched(model, head_loss, arguments)


def _porter_lean(model: Any) -> Patched:
    """The head's gradient summed in its own dtype: less memory, coarser."""
    return _porter(model, accumulate="weight")


def _porter_compiled(model: Any) -> Patched:
    patched = _porter(model)
    return Patched(_compile(patched.module), patched.head_loss)


@dataclass(frozen=True)
class Trainer:
    """Someone who trains.

    Attributes:
        name: as results have it.
        prepare: makes a model ready.
        distribution: whose version is recorded.
        compiles: it takes a minute before its first step, and is left out on a CPU.
    """

    name: str
    prepare: Prepare
    distribution: str | None = None
    compiles: bool = False


TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        Trainer(EAGER, _as_it_is),
        Trainer("hf+compile", _compiled, compiles=True),
        Trainer("liger", _liger, "liger-kernel"),
        Trainer(PORTER, _porter),
        Trainer("porter-lean", _porter_lean),
        Trainer("porter+compile", _porter_compiled, compiles=True),
    )
}


def choose_trainers(names: Sequence[str]) -> list[Trainer]:
    """The trainers of those names, all if there is none; hf comes first, since others are judged by its losses.

    Raises: UsageError: a name is unknown.
    """
    for name in names:
        if name not in TRAINERS:
            raise UsageError(
                f"no trainer is called {name!r}", closest(name, TRAINERS), f"Any of {', '.join(TRAINERS)}."
            )
    return [trainer for name, trainer in TRAINERS.items() if not names or name in names or name == EAGER]
