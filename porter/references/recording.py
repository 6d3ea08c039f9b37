"""HF's eager attention, registered a second time so that it notes the queries and keys it is given."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from porter.references.hooks import Hook

RECORDING = "porter_eager"

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


def uses_registry(model: nn.Module) -> bool:
    """Whether the model's attention can be recorded so."""
    return "eager_attention_forward" in vars(sys.modules[type(model).__module__])


@contextmanager
def hooked(hooks: list[Hook], nodes: dict[str, Tensor]) -> Iterator[None]:
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
