"""The providers by name, and how one is loaded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from porter.bench.cases import AXES, Case
from porter.errors import UsageError, closest

Function = Callable[..., Any]
Builder = Callable[[Case], Function]


class Unsupported(Exception):
    """Why a provider does not have this case."""


@dataclass(frozen=True)
class Provider:
    """Someone who computes ops.

    Attributes:
        name: as the report has it.
        home: module and function that give its builders by op; a builder takes a case and gives a function of the
            op's arguments, or raises Unsupported.
        ops: those it has.
        distribution: whose version is recorded; None for porter and torch, which the environment names anyway.
        needs_gpu: it is left out on a CPU, for this reason.
    """

    name: str
    home: str
    ops: tuple[str, ...]
    distribution: str | None = None
    needs_gpu: str = ""

    def load(self) -> Mapping[str, Builder]:
        """Its builders by op. Raises: ImportError: it, or something it needs, is not installed."""
        module, _, function = self.home.partition(":")
        builders: Mapping[str, Builder] = getattr(import_module(f"porter.bench.providers.{module}"), function)()
        return builders


EAGER, PORTER = "eager", "porter"
OURS = (PORTER, "porter-lean")
ALL, HEAD = tuple(AXES), ("linear_cross_entropy",)
FUSED = ("rms_norm", "add_rms_norm", "cross_entropy", *HEAD)  # layer_norm of torch is what eager calls
LIGER = tuple(op for op in ALL if op != "softcap")
QUACK = ("rms_norm", "add_rms_norm", "rope", "cross_entropy", *HEAD)
COMPILES = "it has no interpreter"
PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(EAGER, "plain:eager", ALL),
        Provider("compile", "plain:compiled", ALL, needs_gpu="torch.compile takes longer here than all else together"),
        Provider("torch", "plain:fused", FUSED),
        Provider("liger", "liger:ops", LIGER, "liger-kernel"),
        Provider("liger-chunk8", "liger:larger_chunks", HEAD, "liger-kernel"),
        Provider("cce", "cce:ops", HEAD, "cut-cross-entropy", COMPILES),
        Provider("quack", "quack:ops", QUACK, "quack-kernels", COMPILES),
        Provider("quack-base", "quack:base_ops", HEAD, "quack-kernels", COMPILES),
        Provider(PORTER, "own:ops", ALL),
        Provider("porter-lean", "own:lean_ops", HEAD),
    )
}


def choose_providers(names: Sequence[str]) -> list[Provider]:
    """The providers of those names, all if there is none; eager comes first, since others are judged by its rounding.

    Raises: UsageError: a name is unknown.
    """
    for name in names:
        if name not in PROVIDERS:
            raise UsageError(
                f"no provider is called {name!r}",
                closest(name, PROVIDERS),
                f"choose among {', '.join(PROVIDERS)}",
            )
    return [provider for name, provider in PROVIDERS.items() if not names or name in names or name == EAGER]


def only(case: Case, name: str, values: Iterable[object]) -> None:
    """Raises: Unsupported: the case's option has none of the values."""
    value = dict(case.options).get(name)
    if value is not None and value not in values:
        raise Unsupported(f"it has no {name}={value}")
