"""A user's module as a lane of a diff: a unit at a time, its nodes under porter's names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from porter.errors import ComparisonError, SpecError, closest
from porter.models.moe import Routed
from porter.references.user_module.layout import heads_of, to_reference
from porter.references.user_module.map_file import Layers, Line, NodeMap
from porter.references.user_module.passes import Passes, Stream
from porter.references.user_module.tap import Tap, watching
from porter.specs.blueprint import Blueprint

Nodes = dict[str, Tensor]
_ROUNDING = {torch.float32: 4 * 2.0**-24, torch.bfloat16: 0.425 * 2.0**-8, torch.float16: 0.425 * 2.0**-11}


class ModuleLane:
    """One user's module in one dtype; it is whole in memory.

    Attributes:
        raw: of the unit that was run last: node -> the tensor as the module has it, before its layout was undone.
        missing: of that unit too: node -> why it was not seen, though the map names it.
        notes: what a report should say of the module.
    """

    def __init__(
        self, name: str, module: nn.Module, node_map: NodeMap, blueprint: Blueprint, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        """
        Raises:
            SpecError: the map names a module, or a layer, that is not there.
        """
        self.name, self.module, self.map, self.blueprint = name, module, node_map, blueprint
        self.dtype, self.device = dtype, device
        layers = find_layers(module, node_map.layers, blueprint.dims.layers, node_map.where(None, "layers"))
        self.passes = Passes(
            name, node_map.source, module, layers, Stream(node_map.layers.input, node_map.layers.output),
            width=blueprint.dims.hidden, dtype=dtype, device=device,
        )  # fmt: skip
        for index, (_, layer) in enumerate(layers):
            for node, line in node_map.of_layer(index).items():
                check_path(layer, line.tap, node_map.where(index, node))
                self._check_rope(index, node, line)
        for node, line in node_map.outside.items():
            check_path(module, line.tap, node_map.where(None, node))
        self.routing: Routed | None = None  # a module does not tell
        self.raw: Nodes = {}
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []
        self._checked = False

    def start(self, ids_BT: Tensor) -> None:
        """Takes a prompt; the first time, the module is run twice.

        Raises:
            ArtifactError: the module cannot be run.
            ComparisonError: it gives other numbers each time.
            UsageError: its layers are not called once each, in order, with a residual stream.
        """
        logits_BTV = self.passes.start(ids_BT)
        if not self._checked:
            self._checked = True
            self._check_repeats(logits_BTV, self.passes.start(ids_BT))

    def embed(self) -> Nodes:
        """embed.out, [B, T, D]: what the module gives its first layer."""
        return {"embed.out": self.passes.embedded}

    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Nodes:
        """The mapped nodes of one layer fed `x_BTD`, in the order they were computed, and resid_post.

        Args:
            routing_BTK: is not looked at: a module chooses its experts itself.
        """
        lines, found = self.map.of_layer(index), Nodes()
        with _noting(self.passes.layers[index], lines, found):
            out_BTD = self.passes.run_layer(index, x_BTD)
        return {**self._named(found, lines, index), "resid_post": out_BTD}

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        """resid_post alone, [B, T, D]."""
        return self.passes.run_layer(index, x_BTD)

    def head(self, x_BTD: Tensor) -> Nodes:
        """final.norm and logits of any positions of the last layer's output, a row at a time."""
        rows = [self._head_of_row(x_1TD[None]) for x_1TD in x_BTD]
        return {node: torch.cat([row[node] for row in rows]) for node in rows[0]}

    def release(self) -> None:
        """Nothing: the module stays in memory."""

    def _head_of_row(self, x_1TD: Tensor) -> Nodes:
        nodes = self._head_of_tokens(x_1TD)
        if nodes["logits"].shape[1] == x_1TD.shape[1]:
            return nodes
        each = [
            self._head_of_tokens(token_11D) for token_11D in torch.split(x_1TD, 1, dim=1)
        ]  # it gives the last one's alone
        return {node: torch.cat([nodes[node] for nodes in each], dim=1) for node in nodes}

    def _head_of_tokens(self, x_1TD: Tensor) -> Nodes:
        lines, found = self.map.outside, Nodes()
        with _noting(self.module, lines, found):
            logits_BTV = self.passes.run_head(x_1TD)
        return {"logits": logits_BTV, **self._named(found, lines, None)}

    def _named(self, found: Nodes, lines: Mapping[str, Line], index: int | None) -> Nodes:
        """The tensors that were noted, as the reference has them."""
        self.raw = found
        nodes = {}
        for node, value in found.items():
            try:
                heads = heads_of(node, self.blueprint, index)
                found_BTHK = to_reference(value, lines[node], heads).contiguous()
                nodes[node] = found_BTHK.flatten(2) if node == "attn.ctx" else found_BTHK
            except ValueError as error:
                place = self.map.where(index, node)
                fix = "Correct its layout: axes, slice, groups, heads, repeat or rope."
                raise SpecError(f"{place}: {node}: {error}", "a layout the tensor has", fix) from error
        self.missing = {node: f"{line.at} is not called" for node, line in lines.items() if node not in found}
        return nodes

    def why(self, node: str) -> str:
        """Why the unit that was run last does not show a node."""
        return self.missing.get(node, "the map does not name it")

    def _check_rope(self, index: int, node: str, line: Line) -> None:
        rope = self.blueprint.blocks[index].rope
        if line.rope is not None and (rope is None or rope.style == line.rope):
            has = "no RoPE" if rope is None else f"{rope.style} RoPE itself"
            raise SpecError(
                f"{self.map.where(index, node)}: {node}: rope: {line.rope}, and the reference has {has}",
                "the layout of a port that differs from the reference's",
                "Leave rope out.",
            )

    def _check_repeats(self, logits_BTV: Tensor, again_BTV: Tensor) -> None:
        """Refuses a module whose numbers differ from run to run by more than rounding."""
        if torch.equal(again_BTV.nan_to_num(), logits_BTV.nan_to_num()):
            return
        size = max(float(logits_BTV.double().norm()), torch.finfo(torch.float64).tiny)
        apart = float((again_BTV.double() - logits_BTV.double()).norm()) / size
        if not apart <= _ROUNDING.get(self.dtype, 0.0):
            raise ComparisonError(
                f"{self.name} gives other logits each time it is run, {apart:.1e} apart",
                "the same numbers for the same ids",
                "Look for dropout outside eval mode, a cache or state that is kept, or random numbers.",
            )
        self.notes.append(f"{self.name} is not deterministic: two runs are {apart:.1e} apart")


@contextmanager
def _noting(root: nn.Module, lines: Mapping[str, Line], found: Nodes) -> Iterator[None]:
    """Within it, the nodes of `lines` are noted in `found`, as they are computed."""
    wanted: dict[Tap, list[str]] = {}
    for node, line in lines.items():
        wanted.setdefault(_first_path(root, line.tap), []).append(node)

    def see(tap: Tap, value: Tensor) -> None:
        for node in wanted.get(tap, ()):
            found[node] = value.detach().clone()

    paths = frozenset(tap.path for tap in wanted if not tap.function)
    with watching(root, see, paths=paths, functions=any(tap.function for tap in wanted)):
        yield


def _first_path(root: nn.Module, tap: Tap) -> Tap:
    """The tap under the first path of its module, where several lead there."""
    module = root.get_submodule(tap.path)
    path = next(path for path, each in root.named_modules() if each is module)
    return Tap(path, tap.function, tap.call, tap.side, tap.index)


def find_layers(module: nn.Module, layers: Layers, count: int, where: str) -> list[tuple[str, nn.Module]]:
    """The modules of the layers, with their paths.

    Raises:
        SpecError: there is no such module, or another number of them.
    """
    paths = layers.paths(count)
    known = dict(module.named_modules(remove_duplicate=False))
    for path in paths:
        if path not in known:
            raise SpecError(f"{where}: layers: there is no module {path!r}", closest(path, known), "Correct it.")
    if len(paths) != count:
        raise SpecError(f"{where}: layers: {len(paths)} paths", f"{count}, one a layer", "Name them all, in order.")
    return [(path, known[path]) for path in paths]


def check_path(root: nn.Module, tap: Tap, where: str) -> None:
    """Refuses a path that leads to no module.   Raises SpecError."""
    known = [path for path, _ in root.named_modules(remove_duplicate=False)]
    if tap.path not in known:
        raise SpecError(f"{where}: there is no module {tap.path!r}", closest(tap.path, known[1:]), "Correct the path.")
