"""HuggingFace's own model as the port of a diff, after something was done to it: its layers have kernels, say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from porter.comparison.cached_lane import Models
from porter.comparison.report import Behaviour
from porter.references.hf import HfReference

Judge = Callable[[str, Models, Tensor], Sequence[Behaviour]]  # (dtype, reference and golden, ids_BT)


@dataclass(frozen=True)
class ChangedPort:
    """The port of a run.

    Attributes:
        change: does it to a model of HuggingFace's, in place; its paths and parameters stay.
        what: what the port is called in a report.
        judge: what is judged besides nodes and logits.
    """

    change: Callable[[Any], object]
    what: str
    details: Mapping[str, str] = field(default_factory=dict)
    judge: Judge = lambda dtype, models, ids_BT: ()

    def open(self, models: Models) -> HfReference:
        """The changed model in the dtype of the reference, a lane like it, on the same tensors."""
        opened = HfReference(models.blueprint, models.folder, models.dtype, models.device, tensors=models.tensors)
        self.change(opened.model)
        return opened
