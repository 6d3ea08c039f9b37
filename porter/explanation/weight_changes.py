"""What a port may have done to a tensor before it computed with it: read another, turned it, added to it, rounded it.

Of a port of another make the weights themselves are not seen, only what it computed with them. Each change is a way to
read a parameter; a unit that is run with it tells whether the port did so. Of a spec, whose tensors are known, a change
is the way they should be read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from porter.explanation.code_changes import in_layer, unit_of
from porter.weights.reader import WeightReader

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WeightChange:
    """A parameter, or all of a module or layer, read in another way.

    Attributes:
        path: the parameter, the module, layers.3.mlp.gate, or layers.3 for all of a layer.
        value, other: what the reference computes with, and what the port does, in words; of a spec, the other way.
        instead: the parameter, module or layer whose tensors it gets; None: its own.
        exchange: get each other's tensors.
        transform: of the tensor that was read, [out, in] where it is a matrix; None: none.
        only: of the parameters below `path`, those that the transform is for; empty: all.
        by_rows: the transform treats each row of a table alone.
        later: rows of a table are those so many further on.
        tensor: what is read in its place; of a module, a tensor of its own.
        kind: what is said to be excluded where it does not help.
        mending: of a spec.
    """

    path: str
    value: str
    other: str
    instead: str | None = None
    exchange: bool = False
    transform: Transform | None = field(default=None, compare=False)
    only: tuple[str, ...] = ()
    by_rows: bool = False
    later: int = 0
    tensor: Tensor | None = field(default=None, compare=False)
    kind: str = ""
    mending: bool = False

    @property
    def override(self) -> str:
        """What the port has, in a sentence."""
        return f"{self.path} is {self.value if self.mending else self.other}"

    @property
    def patch(self) -> str:
        """Where to mend it."""
        right, wrong = (self.other, self.value) if self.mending else (self.value, self.other)
        return f"where {self.path} is loaded: {right}, not {wrong}"

    def acts_in(self, unit: str) -> bool:
        return unit == unit_of(self.path)

    def moved(self, one: int, other: int) -> "WeightChange | None":
        """The same in another layer; None where it can be in this one alone."""
        if self.path == f"layers.{one}" and self.instead is not None:
            return None
        here, there = f"layers.{one}", f"layers.{other}"
        whole = self.path == here
        return replace(
            self, path=there if whole else in_layer(self.path, one, other),
            value=in_layer(self.value, one, other), other=in_layer(self.other, one, other),
            instead=self.instead and in_layer(self.instead, one, other),
            only=tuple(in_layer(each, one, other) for each in self.only),
        )  # fmt: skip

    def read(self, parameter: str, read: Callable[[str], Tensor]) -> Tensor | None:
        """What is read for a parameter; None where the change is about others."""
        source = self.source_of(parameter)
        if source is None:
            return None
        if self.tensor is not None:
            return self.tensor
        tensor = read(source)
        return tensor if self.transform is None else self.transform(tensor).contiguous()

    def source_of(self, parameter: str) -> str | None:
        """The parameter that is read for one; None where the change is about others."""
        if self.only:
            return parameter if parameter in self.only else None
        if parameter == self.path:
            return self.instead or parameter
        if self.instead is not None and parameter.startswith(f"{self.path}."):
            return self.instead + parameter.removeprefix(self.path)
        if self.exchange and self.instead is not None and parameter.startswith(f"{self.instead}."):
            return self.path + parameter.removeprefix(self.instead)
        return None


@dataclass(frozen=True)
class Resplit(WeightChange):
    """Projections of one input whose rows lie together, and are taken apart otherwise.

    Attributes:
        parts: the modules in the order in which their rows are joined.
        rows: module -> which of the joined rows it gets.
    """

    parts: tuple[str, ...] = ()
    rows: Mapping[str, Tensor] = field(default_factory=dict, compare=False)

    def read(self, parameter: str, read: Callable[[str], Tensor]) -> Tensor | None:
        module, _, kind = parameter.rpartition(".")
        if module not in self.rows:
            return None
        return torch.cat([read(f"{part}.{kind}") for part in self.parts])[self.rows[module]]

    def moved(self, one: int, other: int) -> "Resplit | None":
        found = super().moved(one, other)
        assert isinstance(found, Resplit)
        return replace(
            found, parts=tuple(in_layer(each, one, other) for each in self.parts),
            rows={in_layer(name, one, other): rows for name, rows in self.rows.items()},
        )  # fmt: skip


@dataclass(frozen=True)
class ChangedReader(WeightReader):
    """A reader with changes."""

    changes: tuple[WeightChange, ...] = ()

    @staticmethod
    def of(right: WeightReader, changes: tuple[WeightChange, ...]) -> "ChangedReader":
        return ChangedReader(right.checkpoint, right.ledger, right.shared, changes=changes)

    def read(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        for each in self.changes:
            wide = dtype if each.transform is None else torch.float32  # it was done to what is stored

            def upright(name: str, wide: torch.dtype = wide) -> Tensor:
                tensor = WeightReader.read(self, name, wide, device)
                return tensor.T if self._is_turned(name) else tensor

            changed = each.read(parameter, upright)
            if changed is not None:
                return (changed.T if self._is_turned(parameter) else changed).to(device, dtype).contiguous()
        return super().read(parameter, dtype, device)

    def rows(self, parameter: str, rows_N: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        each = self._of_table(parameter)
        if each is None:
            return super().rows(parameter, rows_N, dtype, device)
        if each.tensor is not None:
            return each.tensor[rows_N].to(device, dtype)
        source = each.instead or parameter
        count = self.ledger.entries[source].shape[0]
        wide = dtype if each.transform is None else torch.float32
        found = super().rows(source, (rows_N + each.later) % count, wide, device)
        return found if each.transform is None else each.transform(found).to(dtype)

    def chunks(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        each = self._of_table(parameter)
        if each is not None and each.tensor is not None:
            yield each.tensor.to(device, dtype)
            return
        if each is None or each.transform is None:
            yield from super().chunks(parameter if each is None else each.instead or parameter, dtype, device)
            return
        for chunk in super().chunks(each.instead or parameter, torch.float32, device):
            yield each.transform(chunk).to(dtype)

    def _of_table(self, parameter: str) -> WeightChange | None:
        return next((each for each in self.changes if parameter in (each.path, *each.only)), None)

    def _is_turned(self, parameter: str) -> bool:
        entry = self.ledger.entries[parameter]
        return entry.transpose and entry.parameter.kind == "linear" and len(entry.parameter.shape) == 2
