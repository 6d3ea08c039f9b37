"""The HuggingFace reference: the same weights, pinned, run a unit at a time, its nodes under porter's names.

Pinned: eager attention and experts, dtype through from_pretrained, no kernels from the hub. A layer is HF's own
module, called with the arguments that HF's own forward passes it, which a dry run over bypassed layers records. Its
weights are in memory while it is looked at, and no other layer's.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from porter.errors import ComparisonError
from porter.models.matmul import quick_matmul
from porter.models.moe import Routed
from porter.references.float64 import Float64
from porter.references.hollow import open_hollow
from porter.references.hooks import hooks_of_head, hooks_of_layer, modules_by_path
from porter.references.pinned import find_layers
from porter.references.recording import RECORDING, hooked, uses_registry
from porter.references.routing import HasChosen, Routing
from porter.references.units import Loaded, Places, Weights, Widened, fill_on_demand
from porter.specs.axes import first_of_each_kind
from porter.specs.blueprint import Blueprint
from porter.weights.reader import SharedTensors
from porter.weights.safetensors_files import open_checkpoint

Nodes = dict[str, Tensor]


class _Seen(Exception):
    """Ends a forward pass of which enough was seen."""


class HfReference:
    """One HF model as a lane of a diff.

    Attributes:
        model: HF's model; its weights come when its forward, or that of a layer, runs.
        golden: runs in float64 throughout, float32 islands included.
        routing: of the layer last run; None where it has no experts.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        tensors: SharedTensors | None = None,
        rounded: "HfReference | None" = None,
    ) -> None:
        """Opens the model of a HF-layout folder.

        Args:
            tensors: the folder's, to share what is read with others.
            rounded: take this reference's weights and widen them, instead of the checkpoint's: golden of its dtype.
                What was probed there is not probed again.

        Raises:
            WeightError: HF lacks a tensor, does not know one, or expects another shape.
            ComparisonError: recording what attention is given would change the model.
        """
        self.blueprint, self.dtype, self.device = blueprint, dtype, device
        self.golden = dtype == torch.float64
        self.tensors = tensors or SharedTensors(open_checkpoint(folder))
        self.model, slots = open_hollow(folder, self.tensors.checkpoint, dtype, device)
        self.layers = find_layers(self.model, blueprint.dims.layers)[1]
        places = Places(self.model, self.layers, slots)
        self.weights: Weights
        if rounded is None:
            self.weights = Loaded(places, self.tensors, device)
        else:
            assert isinstance(rounded.weights, Loaded)
            self.weights = Widened(places, rounded.weights)
        fill_on_demand(self.layers, places, self.weights)
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.routing: Routed | None = None
        self._float64 = Float64()
        self._ids_BT = torch.empty(1, 0, dtype=torch.long)
        modules = modules_by_path(self.model, blueprint)
        self.hooks = [hooks_of_layer(modules, blueprint, i) for i in range(len(self.layers))]
        self.head_hooks = hooks_of_head(modules, blueprint)
        self.records_attention = uses_registry(self.model)
        self._embedded = torch.empty(0)
        self._tuples = False
        self._rounded = rounded
        if rounded is None:
            self._probe()
        else:
            self._tuples = rounded._tuples
            self.model.config._attn_implementation = rounded.model.config._attn_implementation

    def golden_of(self, folder: Path) -> "HfReference":
        """Golden of this reference's dtype: HF's model of the folder in float64, on this reference's weights."""
        return HfReference(self.blueprint, folder, torch.float64, self.device, tensors=self.tensors, rounded=self)

    def start(self, ids_BT: Tensor) -> None:
        """Takes a prompt: records what HF passes to each of its layers for it."""
        self._ids_BT = ids_BT.to(self.device)
        with self.running():
            self._embedded = self.call_embedding()
        if self._rounded is not None and any(block.moe for block in self.blueprint.blocks):
            self._rounded.start(ids_BT)  # whose routing is taken

    def call_embedding(self) -> Tensor:
        """[B, T, D], what HF gives its first layer; called within `running`, and records what it passes to each."""
        self._calls, given = [], []

        def note(_layer: int, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            self._calls.append((args, kwargs))
            given.append(x)
            return x

        with self.bypassed(note), self.headless():
            self.model(input_ids=self._ids_BT, use_cache=False)
        return given[0]

    def embed(self) -> Nodes:
        """embed.out, [B, T, D]: what HF gives its first layer."""
        return {"embed.out": self._embedded}

    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Nodes:
        """The nodes of one layer fed `x_BTD`: attn.norm … resid_post; routing_BTK as call_layer takes it."""
        nodes: Nodes = {}
        with self.running(), hooked(self.hooks[index], nodes):
            nodes["resid_post"] = self.call_layer(index, x_BTD, routing_BTK)
        return nodes

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        """resid_post alone, [B, T, D]: a layer on the way of the side's own hidden states."""
        return self.layer(index, x_BTD)["resid_post"]

    def call_layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Tensor:
        """[B, T, D], the output of one layer, given what HF passes it for the prompt; called within `running`.

        Args:
            routing_BTK: the experts that tokens go to, not those its router chooses. Golden's go where the reference of
                its dtype would send them, whatever is asked for.
        """
        args, kwargs = self._calls[index]
        pinned: list[Tensor | None] = []
        if self._rounded is not None:
            with self._float64.suspended():
                pinned = [*self._rounded.route(index, x_BTD)]
        elif routing_BTK is not None:
            pinned = [*[None] * (self._choices(index) - 1), routing_BTK.flatten(0, 1).to(self.device)]
        with Routing(pinned) as routing:
            out = self.layers[index](x_BTD.to(self.device), *args, **kwargs)
        self.routing = None
        if routing.own:
            taken = pinned[-1] if pinned and pinned[-1] is not None else routing.own[-1]
            self.routing = Routed(routing.own[-1][None], taken[None], routing.scores[None])
        found: Tensor = out[0] if isinstance(out, (tuple, list)) else out
        return found

    def _choices(self, index: int) -> int:
        """How often a layer's router chooses: groups where it has any, and experts."""
        moe = self.blueprint.blocks[index].moe
        return 0 if moe is None else 1 if moe.router.groups is None else 2

    def route(self, index: int, x_BTD: Tensor) -> list[Tensor]:
        """What a layer's router chooses, fed `x_BTD`: groups where it has any, and experts; of no router nothing."""
        if not self._choices(index):
            return []
        args, kwargs = self._calls[index]
        routing = Routing(stop_after=self._choices(index))
        with self.running(), suppress(HasChosen), routing:
            self.layers[index](x_BTD.to(self.device, self.dtype), *args, **kwargs)
        return routing.own

    def head(self, x_BTD: Tensor) -> Nodes:
        """final.norm and logits [B, t, V] of any t positions of the last layer's output."""
        nodes: Nodes = {}
        with self.running(), hooked(self.head_hooks, nodes):
            nodes["logits"] = self.call_head(x_BTD.to(self.device))
        return nodes

    def call_head(self, x_BTD: Tensor) -> Tensor:
        """[B, t, V], what HF's forward makes of the last layer's output; called within `running`."""

        def give(_layer: int, _x: Tensor, _args: Any, _kwargs: Any) -> Tensor:
            return x_BTD

        ids_Bt = self._ids_BT[:1, : x_BTD.shape[1]].expand(x_BTD.shape[0], -1)
        with self.bypassed(give):
            logits: Tensor = self.model(input_ids=ids_Bt, use_cache=False).logits
        return logits

    def release(self) -> None:
        """Lets go of the weights that are held, and of what is shared with others."""
        self.weights.release()
        self.tensors.release()

    def describe(self) -> str:
        return f"transformers {transformers.__version__} {type(self.model).__name__}, eager"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it, the model runs as this reference does: without gradients, in its dtype's arithmetic."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._float64 if self.golden else quick_matmul(self.dtype, self.device))
            yield

    @contextmanager
    def bypassed(self, instead: Callable[[int, Tensor, tuple[Any, ...], dict[str, Any]], Tensor]) -> Iterator[None]:
        """Within it, HF's forward calls `instead` (index, input, other arguments) in place of each layer."""

        def stand_in(index: int) -> Callable[..., Any]:
            def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
                out = instead(index, x, args, kwargs)
                return (out,) if self._tuples else out

            return forward

        before = [layer.forward for layer in self.layers]
        try:
            for index, layer in enumerate(self.layers):
                layer.forward = stand_in(index)
            yield
        finally:
            for layer, forward in zip(self.layers, before, strict=True):
                layer.forward = forward

    @contextmanager
    def headless(self) -> Iterator[None]:
        """Within it, the output head gives what it is given, of one position: a dry run needs no logits."""
        head = self.model.get_output_embeddings()
        before = head.forward
        try:
            head.forward = lambda x: x[:, :1]
            yield
        finally:
            head.forward = before

    def _gives_tuples(self, ids_BT: Tensor) -> bool:
        """Whether HF's layers return tuples, which annotations do not say truly: the first is run."""
        found: list[bool] = []

        def note(_module: nn.Module, _args: Any, out: Any) -> None:
            found.append(isinstance(out, (tuple, list)))
            raise _Seen

        handle = self.layers[0].register_forward_hook(note)
        try:
            with self.running(), suppress(_Seen):
                self.model(input_ids=ids_BT, use_cache=False)
        finally:
            handle.remove()
        return found[0]

    def _probe(self) -> None:
        """A layer of each kind, on eight tokens, in plain eager and recording: refuses to record if a bit moves."""
        ids_BT = torch.arange(8, device=self.device)[None] % self.blueprint.dims.vocab
        self._tuples = self._gives_tuples(ids_BT)
        outputs: list[Tensor] = []
        for implementation in ("eager", RECORDING) if self.records_attention else ("eager",):
            self.model.config._attn_implementation = implementation
            self.start(ids_BT)
            for index in first_of_each_kind(self.blueprint):
                args, kwargs = self._calls[index]
                with self.running():
                    out = self.layers[index](self._embedded, *args, **kwargs)
                outputs.append(out[0] if self._tuples else out)
        self.release()
        half = len(outputs) // 2 if self.records_attention else 0
        pairs = zip(outputs[:half], outputs[half:], strict=False)
        if not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs):  # float16 may overflow
            raise ComparisonError(
                f"recording attention changes {type(self.model).__name__}",
                "layers equal to plain eager's",
                "Report this with the versions of torch and transformers; the reference cannot be trusted.",
            )
