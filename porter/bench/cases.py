"""What is measured: an op on a shape, in a dtype, with its options."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from porter.errors import UsageError, closest

AXES: dict[str, str] = {
    "rms_norm": "rows x features",
    "add_rms_norm": "rows x features",
    "layer_norm": "rows x features",
    "rope": "samples x tokens x heads x key heads x head width",
    "glu": "rows x features",
    "activation": "rows x features",
    "softcap": "rows x features",
    "cross_entropy": "rows x vocabulary",
    "linear_cross_entropy": "rows x features x vocabulary",
}
LOSSES = ("cross_entropy", "linear_cross_entropy")
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
Option = str | int | float
LISTED = "porter bench kernels --list shows all cases"


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        op: one of AXES.
        shape: its sizes, in the order that AXES gives.
        dtype: of every floating tensor that goes in.
        options: name and value of what the op is asked for beside its tensors.
        small: so small that the host's time counts; it is measured too.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    options: tuple[tuple[str, Option], ...] = ()
    small: bool = False

    @property
    def size(self) -> str:
        """The shape and what is asked for, without the op and the dtype."""
        return " ".join(["x".join(map(str, self.shape)), *(f"{name}={value}" for name, value in self.options)])

    @property
    def name(self) -> str:
        """What the case is called everywhere: `rms_norm 8192x2048 offset=1 bf16`."""
        return f"{self.op} {self.size} {SHORT[self.dtype]}"

    def option(self, name: str, default: Option) -> Option:
        return dict(self.options).get(name, default)


def default_cases() -> list[Case]:
    """Every shape that docs and targets speak of, then the small ones and the other dtypes."""
    return [*_norms(), *_ropes(), *_activations(), *_losses(), *_small(), *_other_dtypes()]


def _norms() -> Iterator[Case]:
    widths = (2048, 4096, 8192, 16384)
    yield from (Case("rms_norm", (8192, width)) for width in widths)
    yield from (Case("rms_norm", (8192, width), options=(("offset", 1),)) for width in widths)
    yield Case("add_rms_norm", (8192, 4096))
    yield from (Case("layer_norm", (8192, width)) for width in widths)


def _ropes() -> Iterator[Case]:
    yield Case("rope", (4, 4096, 32, 8, 128))
    yield Case("rope", (1, 16384, 32, 8, 128))


def _activations() -> Iterator[Case]:
    for act, widths in (("silu", (11008, 14336, 24576)), ("gelu_tanh", (11008, 14336, 24576)), ("gelu", (14336,))):
        yield from (Case("glu", (8192, width), options=(("act", act),)) for width in widths)
    yield Case("activation", (8192, 14336), options=(("act", "relu2"),))
    yield Case("softcap", (4096, 256000), options=(("cap", 30.0),))


def _losses() -> Iterator[Case]:
    for rows in (8192, 4096):
        yield from (Case("cross_entropy", (rows, width)) for width in (32000, 128256, 151936, 256000))
    yield Case("cross_entropy", (8192, 256000), options=(("softcap", 30.0),))
    for shape in ((8192, 4096, 128256), (16384, 4096, 128256), (8192, 3072, 256000), (8192, 4096, 151936)):
        yield Case("linear_cross_entropy", shape)


def _small() -> Iterator[Case]:
    for op in ("rms_norm", "add_rms_norm", "layer_norm"):
        yield Case(op, (64, 2048), small=True)
    yield Case("rope", (1, 64, 32, 8, 128), small=True)
    yield Case("glu", (64, 8192), options=(("act", "silu"),), small=True)
    yield Case("softcap", (64, 4096), options=(("cap", 30.0),), small=True)
    yield Case("cross_entropy", (64, 32000), small=True)
    yield Case("cross_entropy", (512, 32000))
    yield Case("linear_cross_entropy", (64, 2048, 32000), small=True)
    yield Case("linear_cross_entropy", (512, 2048, 32000))


def _other_dtypes() -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        yield Case("rms_norm", (8192, 4096), dtype)
        yield Case("layer_norm", (8192, 4096), dtype)
        yield Case("rope", (4, 4096, 32, 8, 128), dtype)
        yield Case("glu", (8192, 14336), dtype, (("act", "silu"),))
        yield Case("cross_entropy", (4096, 32000), dtype)


def choose_cases(
    *, ops: Sequence[str] = (), names: Sequence[str] = (), quick: bool = False, cases: Iterable[Case] | None = None
) -> list[Case]:
    """The cases that were asked for, in order.

    Args:
        ops: keep these ops; all if empty.
        names: keep cases whose name contains one of these, or matches it as a pattern with * and ?.
        quick: the first case of each op and option only.
        cases: to choose from; default_cases if None.
    Raises: UsageError: an op is unknown, or nothing is left.
    """
    for op in ops:
        if op not in AXES:
            raise UsageError(f"no op is called {op!r}", closest(op, AXES), LISTED)
    chosen = [
        case
        for case in (default_cases() if cases is None else cases)
        if (not ops or case.op in ops) and (not names or any(_matches(case, name) for name in names))
    ]
    if not chosen:
        raise UsageError(
            f"no case is left of --op {' '.join(ops) or 'all'} and --case {' '.join(names) or 'all'}",
            "part of a case's name, such as 'cross_entropy 8192x128256'",
            LISTED,
        )
    return list(_firsts(chosen)) if quick else chosen


def _matches(case: Case, pattern: str) -> bool:
    return fnmatchcase(case.name, f"*{pattern}*")


def _firsts(cases: Iterable[Case]) -> Iterator[Case]:
    seen = set()
    for case in cases:
        kind = (case.op, case.options, case.small)
        if kind not in seen and case.dtype == "bfloat16":
            seen.add(kind)
            yield case


SHRUNK: Mapping[str, tuple[int, ...]] = {  # what each size is divided by for the interpreter
    "rope": (4, 512, 8, 8, 8),
    "linear_cross_entropy": (1024, 64, 512),
    "cross_entropy": (1024, 512),
}


def shrink(cases: Iterable[Case]) -> list[Case]:
    """The same ops and options on shapes that Triton's interpreter gets through, in float32, each once.

    Its bfloat16 is wrong (Triton 3.9 truncates), and its time and memory say nothing about a GPU.
    """
    return list(dict.fromkeys(map(_shrunken, cases)))


def _shrunken(case: Case) -> Case:
    divisors = SHRUNK.get(case.op, (1024, 128))
    least = 4 if case.op == "rope" else 3
    shape = tuple(max(size // by, least) for size, by in zip(case.shape, divisors, strict=True))
    if case.op == "rope":
        samples, tokens, heads, key_heads, _ = shape
        shape = (min(samples, 2), tokens, heads, min(key_heads, 2), 16)
    return replace(case, shape=shape, dtype="float32", small=False)
