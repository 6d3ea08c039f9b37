"""Drafts a map: every node of the reference is looked for in what a user's module computes, by values.

Each layer of both is fed the reference's own hidden states in float32, so that a mistake in one layer hides nothing in
the next. A node whose values are nowhere is named by its weights, where the module has those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from porter.errors import PreflightError
from porter.references.hf import HfReference
from porter.references.user_module.channels import ALIKE, apart, axes_of, fit, matches, read_order
from porter.references.user_module.find_layers import layers_of
from porter.references.user_module.layout import Heads, Layout, Style, heads_of
from porter.references.user_module.map_file import Layers, Line
from porter.references.user_module.parameters import Held, Holdings
from porter.references.user_module.parts import layer_parts, read_part
from porter.references.user_module.passes import Passes, Stream
from porter.references.user_module.tap import See, Tap, watching
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

_VIEWS = frozenset([  # what they give was computed before
    "view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "split", "chunk", "getitem", "to",
    "unsqueeze", "squeeze", "expand", "clone", "type_as", "detach", "float", "type", "swapaxes", "expand_as", "view_as",
    "movedim", "tensor_split", "unbind", "narrow", "double", "bfloat16",
])  # fmt: skip
_OUTPUT_OF = {  # node -> the part whose product it is
    "attn.q": "attn.q", "attn.k": "attn.k", "attn.v": "attn.v", "attn.out": "attn.o", "mlp.gate": "mlp.gate",
    "mlp.up": "mlp.up", "mlp.out": "mlp.down", "attn.norm": "attn.norm", "mlp.norm": "mlp.norm",
    "attn.q_norm": "attn.q_norm", "attn.k_norm": "attn.k_norm", "attn.post_norm": "attn.post_norm",
    "mlp.post_norm": "mlp.post_norm", "attn.inner_norm": "attn.inner_norm", "mlp.inner_norm": "mlp.inner_norm",
}  # fmt: skip
_INPUT_OF = {"attn.ctx": "attn.o", "mlp.act": "mlp.down", "resid_mid": "mlp.norm"}  # node -> the part that reads it
_IMPLIED = frozenset(["embed.out", "resid_post", "logits"])  # what goes in and out of layers and module needs no line


@dataclass
class Draft:
    """A map as far as it could be drawn up.

    Attributes:
        found: (layer, None outside) -> node -> its line.
        by_weights: nodes that were named by their weights alone, as layers.3.mlp.act.
        unnamed: node -> why it has no line.
        absent: tensors of the checkpoint that the module does not hold.
        left_over: tensors of the module that hold none of the checkpoint's.
        total: how many nodes the reference has.
    """

    layers: Layers
    found: dict[int | None, dict[str, Line]] = field(default_factory=dict)
    by_weights: list[str] = field(default_factory=list)
    unnamed: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    total: int = 0

    @property
    def named(self) -> int:
        return self.total - len(self.unnamed)


class Drafter:
    """Looks for a reference's nodes in one module, in float32."""

    def __init__(
        self, name: str, module: nn.Module, blueprint: Blueprint, reader: WeightReader, reference: HfReference
    ) -> None:
        self.name, self.module, self.blueprint = name, module, blueprint
        self.reader, self.reference = reader, reference
        self.holdings = Holdings(module)

    def draft(self, ids_BT: Tensor) -> Draft:
        """The map, from one prompt.

        Raises:
            PreflightError: the module does not hold the checkpoint's weights.
            UsageError: it has no module for each layer.
            ArtifactError: it cannot be run.
        """
        num_layers, dims = self.blueprint.dims.layers, self.blueprint.dims
        parts = [self._held(index) for index in range(num_layers)]
        tensors = f"{len(self.reader.ledger.entries)} tensors of the checkpoint"
        check_weights(self.name, [held for layer in parts for held in layer.values()], tensors)
        matrices = [{name: held for name, held in layer.items() if not _is_vector(name)} for layer in parts]
        self.reference.start(ids_BT)
        x_BTD = self.reference.embed()["embed.out"]
        streams = (x_BTD, self.reference.output(0, x_BTD))
        ids = ids_BT.to(self.reference.device)
        draft = Draft(layers_of(self.name, self.module, matrices, ids, streams))
        paths = draft.layers.paths(num_layers)
        modules = [(path, self.module.get_submodule(path)) for path in paths]
        passes = Passes(
            self.name, "the map", self.module, modules, Stream(draft.layers.input, draft.layers.output),
            width=dims.hidden, dtype=torch.float32, device=self.reference.device,
        )  # fmt: skip
        passes.start(ids_BT)
        self._check_stream(draft, "embed.out", passes.embedded, x_BTD)
        for index in range(num_layers):
            nodes = self.reference.layer(index, x_BTD)
            seen: dict[Tap, Tensor] = {}
            with watching(modules[index][1], _keeper(seen, ids_BT.shape[1]), functions=True):
                out_BTD = passes.run_layer(index, x_BTD)
            self._name_layer(draft, index, nodes, seen, parts[index])
            self._check_stream(draft, f"layers.{index}.resid_post", out_BTD, nodes["resid_post"])
            x_BTD = nodes["resid_post"]
            self.reference.release()
        self._name_head(draft, passes, x_BTD, paths)
        self._count_weights(draft, parts)
        return draft

    def _held(self, layer: int) -> dict[str, Held]:
        found = {}
        for name, value in layer_parts(self.reader, self.blueprint, layer).items():
            held = self.holdings.find(value)
            if held is not None and (value.ndim == 2 or len(self.holdings.vectors(value)) == 1):
                found[name] = held
        return found

    def _check_stream(self, draft: Draft, name: str, port: Tensor, reference: Tensor) -> None:
        """Counts a node that has no line of its own; its values are for porter diff to judge."""
        draft.total += 1
        if port.shape != reference.shape:
            draft.unnamed[name] = f"the module has {list(port.shape)}, the reference {list(reference.shape)}"

    def _name_layer(
        self,
        draft: Draft,
        index: int,
        nodes: Mapping[str, Tensor],
        seen: Mapping[Tap, Tensor],
        held: Mapping[str, Held],
    ) -> None:
        lines = draft.found.setdefault(index, {})
        root = draft.layers.paths(self.blueprint.dims.layers)[index]
        rope = self.blueprint.blocks[index].rope
        style = None if rope is None else rope.style
        before = draft.found.get(index - 1, {})
        for node, value in nodes.items():
            if node in _IMPLIED:
                continue
            draft.total += 1
            heads = heads_of(node, self.blueprint, index)
            wanted = _by_weights(node, held, root, seen)
            line = self._known(before.get(node), value, seen, heads) or _search(value, seen, wanted, heads, style)
            name = f"layers.{index}.{node}"
            if line is None and wanted is not None:
                line = _line_of_weights(node, wanted, seen, held, heads, style)
                draft.by_weights += [name] if line is not None else []
            if line is not None:
                lines[node] = line
            else:
                draft.unnamed[name] = _why_not(node, held, wanted)

    @staticmethod
    def _known(line: Line | None, value: Tensor, seen: Mapping[Tap, Tensor], heads: Heads | None) -> Line | None:
        """The line of the layer before, where it is right here too."""
        if line is None or line.tap not in seen:
            return None
        return line if matches(value, seen[line.tap], line, heads) else None

    def _name_head(self, draft: Draft, passes: Passes, x_BTD: Tensor, layers: tuple[str, ...]) -> None:
        nodes, T = self.reference.head(x_BTD), x_BTD.shape[1]
        inside = tuple(f"{path}." for path in layers)
        paths = frozenset(p for p, _ in self.module.named_modules() if not f"{p}.".startswith(inside))
        seen: dict[Tap, Tensor] = {}
        with watching(self.module, _keeper(seen, T), paths=paths):
            logits_BTV = passes.run_head(x_BTD)
        if logits_BTV.shape[1] == 1 < T:  # it gives the last token's alone, and may cut the stream before its norm
            nodes = {node: value[:, -1:] for node, value in nodes.items()}
            with watching(self.module, _keeper(seen, None), paths=paths):
                logits_BTV = passes.run_head(x_BTD[:, -1:])
        lines = draft.found.setdefault(None, {})
        for node, value in nodes.items():
            draft.total += 1
            if node == "logits" and logits_BTV.shape == value.shape:
                continue
            line = _search(value, seen, None, None, None) if value.shape[1] == T else _search_token(value, seen)
            if line is not None:
                lines[node] = line
            else:
                draft.unnamed[node] = "no tensor has its values"

    def _count_weights(self, draft: Draft, parts: list[dict[str, Held]]) -> None:
        used = {held.name for layer in parts for held in layer.values()}
        for index, layer in enumerate(parts):
            whole = layer_parts(self.reader, self.blueprint, index)
            for name, value in whole.items():
                if name not in layer and not self.holdings.vectors(value):
                    draft.absent.append(f"layers.{index}.{name}")
                elif value.ndim == 1:
                    used |= set(self.holdings.vectors(value))
        for parameter in self.reader.ledger.entries:
            if not parameter.startswith("layers.") and parameter.endswith(".weight"):
                value = read_part(self.reader, parameter)
                held = self.holdings.find(value) if value.ndim in (1, 2) else None
                used |= {held.name} if held else set()
                draft.absent += [] if held else [parameter.removesuffix(".weight")]
        parameters = [n for n, p in self.module.named_parameters() if p.is_floating_point() and p.ndim == 2]
        draft.left_over = [name for name in parameters if name not in used]


def check_weights(name: str, held: Sequence[Held | None], what: str) -> None:
    """Refuses a module that holds none of the checkpoint's tensors.

    Raises:
        PreflightError: it holds none.
    """
    if not any(held):
        raise PreflightError(
            f"none of the {what} is in {name}",
            "the reference's weights, in any order of rows, fused or transposed",
            "Load them in your function: porter gives it the checkpoint's folder.",
        )


def _keeper(seen: dict[Tap, Tensor], length: int | None) -> See:
    """Keeps every tensor with an axis of so many tokens; None: every tensor."""

    def see(tap: Tap, value: Tensor) -> None:
        if not isinstance(value, nn.Parameter) and (length is None or axes_of(value, length) is not None):
            seen.setdefault(tap, value.detach().clone())

    return see


def _is_vector(part: str) -> bool:
    return part.endswith("norm")


def _by_weights(node: str, held: Mapping[str, Held], root: str, seen: Mapping[Tap, Tensor]) -> Tap | None:
    """Where a node should show, by the module that holds its weights; None where that is not known or not called."""
    part = _OUTPUT_OF.get(node) or _INPUT_OF.get(node)
    if part is None or part not in held or not f"{held[part].path}.".startswith(f"{root}."):
        return None
    path = held[part].path[len(root) + 1 :]
    tap = Tap(path, side="output" if node in _OUTPUT_OF else "input")
    return tap if tap in seen else None


def _ranked(wanted: Tap | None, seen: Mapping[Tap, Tensor]) -> list[Tap]:
    """All taps, those first that read best in a map: modules before functions, what is computed before views of it."""

    def rank(tap: Tap) -> tuple[int, int]:
        if tap == wanted:
            return 0, 0
        if not tap.function:
            return (1 if tap.side == "output" else 2), -tap.path.count(".")
        if tap.function in _VIEWS:
            return 6, 0
        if tap.function == "scaled_dot_product_attention" and tap.side == "input":
            return 3, 0
        return (4 if tap.side == "output" else 5), 0

    return sorted(seen, key=rank)


def _search(
    value: Tensor, seen: Mapping[Tap, Tensor], wanted: Tap | None, heads: Heads | None, style: Style | None
) -> Line | None:
    for tap in _ranked(wanted, seen):
        layout = fit(value, seen[tap], heads, style)
        if layout is not None:
            return _line(tap, layout)
    return None


def _search_token(value_11F: Tensor, seen: Mapping[Tap, Tensor]) -> Line | None:
    """Where the values of one token are, whole."""
    for tap in _ranked(None, seen):
        if seen[tap].numel() == value_11F.numel() and apart(seen[tap].reshape(value_11F.shape), value_11F) < ALIKE:
            return _line(tap, Layout.model_validate({"axes": "TD"}) if seen[tap].ndim == 2 else None)
    return None


def _line(tap: Tap, layout: Layout | None = None) -> Line:
    return Line.model_validate({"at": str(tap), **({} if layout is None else layout.declared())})


def _line_of_weights(
    node: str, tap: Tap, seen: Mapping[Tap, Tensor], held: Mapping[str, Held], heads: Heads | None, style: Style | None
) -> Line | None:
    """A line without evidence by values: the rows of its weights say which channels are the node's."""
    if node in _INPUT_OF or _is_vector(_OUTPUT_OF[node]):
        return _line(tap)
    part, width = held[_OUTPUT_OF[node]], seen[tap].shape[-1]
    found = next(read_order(part.rows, width, heads, style), None)
    return None if found is None else _line(tap, Layout.model_validate(found))


def _why_not(node: str, held: Mapping[str, Held], wanted: Tap | None) -> str:
    part = _OUTPUT_OF.get(node) or _INPUT_OF.get(node)
    if part is not None and part in held and wanted is None:
        return f"{held[part].path} holds its weights and is not called"
    return "no tensor has its values"
