"""HF's eager attention, registered a second time so that it notes the queries and keys it is given."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from porter.references.hooks import Hook, Note, Split

RECORDING = "porter_eager"
_ADDED_TO = frozenset(("attn.out", "mlp.out"))  # in place, by some models' code after they are shown (Falcon)

_NOTE: ContextVar[Note | None] = ContextVar("note", default=None)


def _recording_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """The model's own eager attention, noting the queries and keys it is given ([B, heads, T, K])."""
    note = _NOTE.get()
    if note is not None:
        note(query, lambda value: {"attn.q_rope": value.transpose(1, 2)})
        note(key, lambda value: {"attn.k_rope": value.transpose(1, 2)})
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

    def record(value: Tensor, split: Split) -> None:
        nodes.update({name: each.clone() if name in _ADDED_TO else each for name, each in split(value).items()})

    with noted(hooks, record):
        yield


@contextmanager
def noted(hooks: list[Hook], note: Note) -> Iterator[None]:
    """Within it, `note` is told the tensors that HF's modules compute with, before they are split into nodes."""
    token = _NOTE.set(note)
    handles = [hook.attach(note) for hook in hooks]
    try:
        yield
    finally:
        _NOTE.reset(token)
        for handle in handles:
            handle.remove()
