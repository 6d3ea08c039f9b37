"""What is trained: a model's shapes with a few layers, a batch, and Medusa heads where asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from porter.errors import UsageError, closest
from porter.specs.shapes import Shape, find_shape

EAGER, PORTER = "hf", "porter"  # trainers: whom others are judged by, and whose this is
OURS = (PORTER, "porter-lean", "porter+compile")
LAYERS = 8
MODELS = ("llama-3-8b", "gemma-7b")
GRID = ((16, 512), (2, 4096), (1, 8192))  # batch, tokens: as many tokens each
MEDUSA_GRID = (8, 4096)  # where all logits of four heads and more do not fit an H200
MEDUSA_HEADS = (3, 5)


@dataclass(frozen=True)
class TrainCase:
    """One thing to train.

    Attributes:
        model: a size.
        layers: in place of the size's own.
        batch: samples.
        tokens: of each.
        heads: Medusa heads beside the model's own.
        size: of a family, where `model` is one.
    """

    model: str
    layers: int
    batch: int
    tokens: int
    heads: int = 0
    size: str | None = None

    @property
    def name(self) -> str:
        """llama-3-8b/8 2x4096, with +3 heads where there are any."""
        heads = f" +{self.heads} heads" if self.heads else ""
        return f"{self.model}/{self.layers} {self.batch}x{self.tokens}{heads}"

    @property
    def shape(self) -> Shape:
        return find_shape(self.model, self.size, self.layers)


def train_cases(
    *,
    models: Sequence[str] = (),
    grid: Sequence[tuple[int, int]] = (),
    layers: int = LAYERS,
    medusa: bool = True,
    names: Sequence[str] = (),
) -> list[TrainCase]:
    """The cases that were asked for, in order.

    Args:
        models: sizes; Llama 3 8B and Gemma 7B if empty.
        grid: batch and tokens of each; GRID if empty.
        layers: of each model.
        medusa: with Medusa heads too, on the first model.
        names: keep cases whose name contains one of these, or matches it as a pattern with * and ?.
    Raises: UsageError: nothing is left, or no size has a model's name.
    """
    models = models or MODELS
    cases = [TrainCase(model, layers, batch, tokens) for model in models for batch, tokens in grid or GRID]
    if medusa:
        cases += [TrainCase(models[0], layers, *MEDUSA_GRID, heads) for heads in MEDUSA_HEADS]
    chosen = [case for case in cases if not names or any(fnmatchcase(case.name, f"*{name}*") for name in names)]
    if not chosen:
        known = [case.name for case in cases]
        raise UsageError(
            f"no case is left of --case {' '.join(names)}", closest(names[0], known), f"There are: {'; '.join(known)}."
        )
    for case in chosen:
        find_shape(case.model, case.size, case.layers)
    return chosen


def read_grid(text: str) -> tuple[int, int]:
    """Batch and tokens of 2x4096.   Raises UsageError: it is none."""
    batch, _, tokens = text.partition("x")
    if not (batch.isdigit() and tokens.isdigit() and int(batch) and int(tokens)):
        raise UsageError(f"--grid {text!r}", "samples x tokens, such as 2x4096", "Give several with several --grid.")
    return int(batch), int(tokens)
