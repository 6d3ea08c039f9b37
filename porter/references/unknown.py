"""HuggingFace's own model of a config that no family describes yet: made small, with weights that hide nothing, traced.

Nothing here knows a spec: names, shapes and the flow of data are HF's.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from porter.errors import PreflightError
from porter.references.pinned import find_layers, load_pinned
from porter.references.quiet import quiet_transformers

HF_ERRORS = (  # what config classes and models raise where a config makes no sense to them
    TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError, ArithmeticError, AssertionError,
    NotImplementedError, StrictDataclassError,
)  # fmt: skip
_SPREAD = 0.3  # of weights that HF makes constant: norms, biases, sinks


def is_known(model_type: str | None) -> bool:
    """Whether transformers has a causal language model of that model_type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def hydrate(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as its HF class fills it in, absent keys and all.

    Raises:
        PreflightError: the class refuses it.
    """
    from transformers import CONFIG_MAPPING

    values = {key: value for key, value in deepcopy(dict(config)).items() if key != "model_type"}
    kind: Any = CONFIG_MAPPING[str(config["model_type"])]
    with quiet_transformers():
        try:
            found: dict[str, Any] = kind(**values).to_dict()
        except HF_ERRORS as error:
            raise _refused(config, error) from error
    return found


def empty_model(config: Mapping[str, Any]) -> Any:
    """HF's model of a config, without memory for its weights.

    Raises:
        PreflightError: HF makes no model of it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    values = {key: value for key, value in deepcopy(dict(config)).items() if key != "model_type"}
    with quiet_transformers(), torch.device("meta"):
        try:
            return auto.from_config(AutoConfig.for_model(str(config["model_type"]), **values))
        except HF_ERRORS as error:
            raise _refused(config, error) from error


_LARGE = 60_000_000  # parameters that a search can still run quickly


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config itself where its model is small, else one of the same architecture made small.

    Raises:
        PreflightError: HF makes no model of it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    for made in (dict(config), *_smaller(config)):
        values = {key: value for key, value in deepcopy(made).items() if key != "model_type"}
        with quiet_transformers(), torch.device("meta"):
            try:
                model = auto.from_config(AutoConfig.for_model(str(config["model_type"]), **values))
            except HF_ERRORS as error:
                if made == config:
                    raise _refused(config, error) from error
                continue
        if sum(each.numel() for each in model.parameters()) <= _LARGE:
            return made
    raise PreflightError(
        f"a {config.get('model_type')!r} config cannot be made small enough to search with",
        f"at most {_LARGE:,} parameters",
        "Give a folder whose config.json is of a small model of the same architecture.",
    )


_SMALL = {  # config key -> a small value of it
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 96),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim"), 160),
    "vocab_size": 512, "head_dim": 24, **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 8),
    "moe_intermediate_size": 48, "shared_expert_intermediate_size": 64, "sliding_window": 128, "rotary_dim": 16,
}  # fmt: skip
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")


def _smaller(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Small configs of the same architecture, the most faithful first."""
    small = dict(config)
    for key, value in _SMALL.items():
        if isinstance(small.get(key), int) and not isinstance(small[key], bool):
            small[key] = min(small[key], value)
    heads = next((key for key in _HEADS if isinstance(small.get(key), int)), None)
    if heads is not None:
        groups = small.get("num_key_value_heads")
        ratio = small[heads] // groups if isinstance(groups, int) and groups else 1
        small[heads] = 4
        if isinstance(groups, int):
            small["num_key_value_heads"] = max(1, 4 // ratio)
    for key in ("layer_types", "no_rope_layers", "mlp_layer_types", "layers_block_type"):
        if isinstance(small.get(key), list):
            small[key] = small[key][: _SMALL["num_hidden_layers"]]
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if small.get(key) is not None:
            small[key] = 1
    few = {key: value for key, value in small.items() if key not in ("layer_types", "head_dim")}
    return [small, few]


def write_stress(config: Mapping[str, Any], folder: Path, seed: int = 0) -> None:
    """HF's model of a config with seeded weights as a float32 checkpoint, in the layout HF saves.

    What HF makes constant (norms, biases, sinks) is spread around that constant; else each linear map has unit gain.

    Raises:
        PreflightError: HF makes no model of the config.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    generator = torch.Generator().manual_seed(seed)
    values = {key: value for key, value in deepcopy(dict(config)).items() if key != "model_type"}
    auto: Any = AutoModelForCausalLM
    with quiet_transformers():
        try:
            made: Any = AutoConfig.for_model(str(config["model_type"]), **values)
            model = auto.from_config(made, dtype=torch.float32)
        except HF_ERRORS as error:
            raise _refused(config, error) from error
        with torch.no_grad():
            state = model.state_dict()
            for name in sorted(state):
                if state[name].is_floating_point():
                    state[name].copy_(_stressed(state[name], generator))
        model.save_pretrained(folder)


def _stressed(value: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(value.shape, generator=generator)
    if value.numel() < 2 or value.ndim < 2 or bool((value == value.flatten()[0]).all()):
        spread: Tensor = value + _SPREAD * noise
        return spread
    scaled: Tensor = noise * value.shape[-1] ** -0.5
    return scaled


def _refused(config: Mapping[str, Any], error: Exception) -> PreflightError:
    told = " ".join(str(error).split())[:300]
    return PreflightError(
        f"HF makes no model of a {config.get('model_type')!r} config ({type(error).__name__}: {told})",
        "a config that its own class can read",
        "Correct config.json.",
    )


@dataclass(frozen=True)
class Call:
    """A call of one module of a layer.

    Attributes:
        path: relative to the layer.
        weight: shape of its own weight; None where it has none.
    """

    path: str
    kind: str
    weight: tuple[int, ...] | None
    given: Tensor
    out: Tensor

    @property
    def is_linear(self) -> bool:
        return (
            self.weight is not None
            and len(self.weight) == 2
            and self.given.shape[:-1] == self.out.shape[:-1]
            and ("Norm" not in self.kind)
        )

    @property
    def is_norm(self) -> bool:
        return (
            not self.is_linear
            and self.given.shape == self.out.shape
            and ("norm" in self.kind.lower() or "ln" in self.path.rpartition(".")[2].lower())
        )


@dataclass(frozen=True)
class LayerTrace:
    """One layer as it ran.

    Attributes:
        path: HF's path of the list of layers.
    """

    path: str
    given: Tensor
    out: Tensor
    calls: tuple[Call, ...]


@torch.no_grad()
def trace_layers(folder: Path, num_layers: int, which: Iterable[int], ids_BT: Tensor) -> dict[int, LayerTrace]:
    """The calls inside some layers of HF's model of a folder, in order."""
    model = load_pinned(folder, torch.float32, torch.device("cpu"))
    path, layers = find_layers(model, num_layers)
    found: dict[int, LayerTrace] = {}
    for index in which:
        calls: list[Call] = []
        whole: list[tuple[Tensor, Tensor]] = []
        handles = [layers[index].register_forward_hook(_note_whole(whole), with_kwargs=True)]
        for name, module in layers[index].named_modules():
            if name and not any(True for _ in module.children()):
                handles.append(module.register_forward_hook(_note(name, module, calls), with_kwargs=True))
        model(input_ids=ids_BT, use_cache=False)
        for handle in handles:
            handle.remove()
        found[index] = LayerTrace(path, *whole[0], tuple(calls))
    return found


def _note(name: str, module: nn.Module, calls: list[Call]) -> Any:
    def note(_module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        out = out[0] if isinstance(out, tuple | list) else out
        if isinstance(given, Tensor) and isinstance(out, Tensor):
            weight = getattr(module, "weight", None)
            shape = tuple(weight.shape) if isinstance(weight, Tensor) else None
            calls.append(Call(name, type(module).__name__, shape, given, out))

    return note


def _note_whole(whole: list[tuple[Tensor, Tensor]]) -> Any:
    def note(_module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        given = args[0] if args else kwargs["hidden_states"]
        whole.append((given, out[0] if isinstance(out, tuple | list) else out))

    return note
