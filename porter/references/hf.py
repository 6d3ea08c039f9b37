"""The HuggingFace reference: the same weights, pinned, run a unit at a time, its nodes under porter's names.

Pinned: eager attention and experts, dtype through from_pretrained, no kernels from the hub. A layer is HF's own
module, called with the arguments that HF's own forward passes it, which a dry run over bypassed layers records.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from porter.errors import ComparisonError, WeightError
from porter.models.matmul import quick_matmul
from porter.references.float64 import Float64
from porter.references.hooks import Hook, hooks_of_head, hooks_of_layer
from porter.references.quiet import quiet_transformers
from porter.specs.blueprint import Blueprint

RECORDING = "porter_eager"
Nodes = dict[str, Tensor]

_RECORD: ContextVar[Callable[[str, Tensor], None] | None] = ContextVar("record", default=None)


def _recording_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """The model's own eager attention, noting the queries and keys it is given ([B, heads, T, K])."""
    record = _RECORD.get()
    if record is not None:
        record("attn.q_rope", query.transpose(1, 2))
        record("attn.k_rope", key.transpose(1, 2))
    own = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    return own(module, query, key, value, *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(RECORDING, _recording_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(RECORDING, eager_mask)  # without it HF would pass no causal mask


class HfReference:
    """One HF model as a lane of a diff.

    Attributes:
        model: HF's model, as from_pretrained gives it.
        golden: runs in float64 throughout, float32 islands included.
    """

    def __init__(self, blueprint: Blueprint, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.blueprint, self.dtype, self.device = blueprint, dtype, device
        self.golden = dtype == torch.float64
        self.model = load_pinned(folder, dtype, device)
        self.layers = find_layers(self.model, blueprint)
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._ids_BT = torch.empty(1, 0, dtype=torch.long)
        self._hooks = [hooks_of_layer(self.model, blueprint, i) for i in range(len(self.layers))]
        self._head_hooks = hooks_of_head(self.model, blueprint)
        self.records_attention = _uses_registry(self.model)
        self._embedded = torch.empty(0)
        self._tuples = False
        self._probe()

    def round_weights(self, dtype: torch.dtype) -> None:
        """Rounds every parameter to `dtype` in place and keeps the model's own dtype: golden of that stage."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(parameter.to(dtype))

    def start(self, ids_BT: Tensor) -> None:
        """Takes a prompt: records what HF passes to each of its layers for it."""
        self._ids_BT = ids_BT.to(self.device)
        self._calls = []

        def note(_layer: int, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            self._calls.append((args, kwargs))
            self._embedded = x if len(self._calls) == 1 else self._embedded
            return x

        with self._running(), self._bypassed(note), self._headless():
            self.model(input_ids=self._ids_BT, use_cache=False)

    def embed(self) -> Nodes:
        """embed.out, [B, T, D]: what HF gives its first layer."""
        return {"embed.out": self._embedded}

    def layer(self, index: int, x_BTD: Tensor) -> Nodes:
        """The nodes of one layer fed `x_BTD`: attn.norm … resid_post."""
        nodes: Nodes = {}
        args, kwargs = self._calls[index]
        with self._running(), _hooked(self._hooks[index], nodes):
            out = self.layers[index](x_BTD.to(self.device), *args, **kwargs)
        nodes["resid_post"] = out[0] if isinstance(out, tuple) else out
        return nodes

    def head(self, x_BTD: Tensor) -> Nodes:
        """final.norm and logits [B, t, V] of any t positions of the last layer's output."""
        nodes: Nodes = {}
        x_BTD = x_BTD.to(self.device)

        def give(_layer: int, _x: Tensor, _args: Any, _kwargs: Any) -> Tensor:
            return x_BTD

        ids_Bt = self._ids_BT[:, : x_BTD.shape[1]]
        with self._running(), self._bypassed(give), _hooked(self._head_hooks, nodes):
            nodes["logits"] = self.model(input_ids=ids_Bt, use_cache=False).logits
        return nodes

    @torch.no_grad()
    def forward(self, ids_BT: Tensor) -> tuple[list[Tensor], Tensor]:
        """HF's ordinary forward pass: the output of every layer, and the logits."""
        outputs: list[Tensor] = []

        def keep(_module: nn.Module, _args: Any, out: Any) -> None:
            outputs.append(out[0] if isinstance(out, tuple) else out)

        with ExitStack() as stack:
            for layer in self.layers:
                stack.callback(layer.register_forward_hook(keep).remove)
            logits: Tensor = self.model(input_ids=ids_BT.to(self.device), use_cache=False).logits
        return outputs, logits

    def describe(self) -> str:
        return f"transformers {transformers.__version__} {type(self.model).__name__}, eager"

    @contextmanager
    def _running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(Float64() if self.golden else quick_matmul(self.dtype, self.device))
            yield

    @contextmanager
    def _bypassed(self, instead: Callable[[int, Tensor, tuple[Any, ...], dict[str, Any]], Tensor]) -> Iterator[None]:
        """Within it, HF's forward calls `instead` in place of each layer."""

        def stand_in(index: int) -> Callable[..., Any]:
            def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
                out = instead(index, x, args, kwargs)
                return (out,) if self._tuples else out

            return forward

        try:
            for index, layer in enumerate(self.layers):
                layer.forward = stand_in(index)
            yield
        finally:
            for layer in self.layers:
                vars(layer).pop("forward", None)

    @contextmanager
    def _headless(self) -> Iterator[None]:
        """Within it, the output head looks at one position only: a dry run needs no logits."""
        handle = self.model.get_output_embeddings().register_forward_pre_hook(lambda _module, args: (args[0][:, :1],))
        try:
            yield
        finally:
            handle.remove()

    def _probe(self) -> None:
        """Eight tokens through plain eager and through recording: refuses to record if that moves a bit.

        Also notes whether layers return tuples, which annotations do not say truly.
        """
        ids_BT = torch.arange(8, device=self.device)[None] % self.blueprint.dims.vocab
        logits: list[Tensor] = []
        outputs: list[Any] = []
        for implementation in ("eager", RECORDING) if self.records_attention else ("eager",):
            self.model.config._attn_implementation = implementation
            handles = [layer.register_forward_hook(lambda _m, _a, out: outputs.append(out)) for layer in self.layers]
            with self._running():
                logits.append(self.model(input_ids=ids_BT, use_cache=False).logits)
            for handle in handles:
                handle.remove()
        self._tuples = isinstance(outputs[0], tuple)
        if not all(torch.equal(logits[0].nan_to_num(), each.nan_to_num()) for each in logits):  # float16 may overflow
            raise ComparisonError(
                f"recording attention changes {type(self.model).__name__}",
                "logits equal to plain eager's",
                "Report this with the versions of torch and transformers; the reference cannot be trusted.",
            )


def load_pinned(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """HF's model of a HF-layout folder, in eval mode; dtype goes through from_pretrained, so tables stay HF's own.

    Raises:
        WeightError: HF lacks a tensor, does not know one, or expects another shape; it would fill it at random.
    """
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", local_files_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    model, info = loaded
    for problem, what in (
        ("missing_keys", "are not in the checkpoint, but HF's model has them"),
        ("unexpected_keys", "are in the checkpoint, but HF's model has no such tensors"),
        ("mismatched_keys", "have another shape in HF's model"),
    ):
        if info[problem]:
            names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info[problem])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise WeightError(
                f"{', '.join(names[:3])}{more}: {what}",
                f"the tensors of {type(model).__name__}",
                "Correct `weights`, or the axis that adds or shapes them, in the spec; then build again.",
            )
    return _aligned(model.to(device).eval())


def _aligned(model: nn.Module) -> nn.Module:
    """The model with tensors where torch would put them, not at the odd bytes of a mapped file.

    MKL sums a matrix-vector product in another order when its weights are not aligned to 16 bytes: one token of a
    right port would not be bit-equal (torch 2.13, AVX2).
    """
    for parameter in model.parameters():
        if parameter.data_ptr() % 64:
            parameter.data = parameter.data.clone()
    return model


def find_layers(model: nn.Module, blueprint: Blueprint) -> nn.ModuleList:
    """HF's list of decoder layers.

    Raises:
        ComparisonError: the model has no list of that many layers.
    """
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == blueprint.dims.layers:
            return module
    raise ComparisonError(
        f"{type(model).__name__} has no list of {blueprint.dims.layers} layers",
        "HF's model with the layers of the config",
        "Check num_hidden_layers of the config.",
    )


def _uses_registry(model: nn.Module) -> bool:
    return "eager_attention_forward" in vars(sys.modules[type(model).__module__])


@contextmanager
def _hooked(hooks: list[Hook], nodes: Nodes) -> Iterator[None]:
    """Within it, HF's modules note their inputs and outputs in `nodes`."""

    def record(name: str, value: Tensor) -> None:
        nodes[name] = value

    token = _RECORD.set(record)
    handles = [hook.attach(record) for hook in hooks]
    try:
        yield
    finally:
        _RECORD.reset(token)
        for handle in handles:
            handle.remove()
