"""AutoModelForCausalLM with porter's kernels in it."""

from typing import Any

import transformers

from porter.patching.patch import patch

_SWITCHES = ("rms_norm", "layer_norm", "rope", "glu", "linear_cross_entropy", "verify")


class AutoModelForCausalLM:
    """transformers.AutoModelForCausalLM, whose models come patched: porter.patch(model) in one step."""

    @staticmethod
    def from_pretrained(name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """The model that transformers loads, patched.

        Args:
            kwargs: those of porter.patch, rms_norm to verify, go there; all others to transformers.
        """
        switches = {name: kwargs.pop(name) for name in _SWITCHES if name in kwargs}
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_pretrained(name_or_path, *args, **kwargs)
        patch(model[0] if isinstance(model, tuple) else model, **switches)  # output_loading_info gives two
        return model

    @staticmethod
    def from_config(config: Any, **kwargs: Any) -> Any:
        """A model of a config with random weights, patched."""
        switches = {name: kwargs.pop(name) for name in _SWITCHES if name in kwargs}
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_config(config, **kwargs)
        patch(model, **switches)
        return model
