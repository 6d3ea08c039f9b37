"""HuggingFace's models of a size, with fewer layers where asked, and random weights made where they are to lie."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from porter.references.quiet import quiet_transformers
from porter.specs.shapes import Shape


def make_model(shape: Shape, *, dtype: torch.dtype, device: torch.device, attention: str = "sdpa") -> Any:
    """HF's model for training, its random weights of seed 0 made on the device; no dropout.

    Args:
        attention: HF's implementation of it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # 5.17 imports triton: porter chooses its mode before

    config = AutoConfig.for_model(shape.family.tree["model_type"], **shape.config)
    for key in vars(config):
        if ("dropout" in key or key.endswith("_pdrop")) and isinstance(getattr(config, key), float):
            setattr(config, key, 0.0)
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    with quiet_transformers(), torch.device(device):
        model = auto.from_config(config, dtype=dtype, attn_implementation=attention)
    return model.to(device).train()


def draw_batch(shape: Shape, batch: int, tokens: int, device: torch.device, seed: int = 0) -> Tensor:
    """[B, T] int64, ids of the vocabulary, seeded; drawn on the CPU, so that every machine has the same."""
    generator = torch.Generator().manual_seed(seed)
    vocab = shape.blueprint.dims.vocab
    return torch.randint(vocab, (batch, tokens), generator=generator).to(device)


@contextmanager
def counting_saved(model: nn.Module) -> Iterator[dict[int, int]]:
    """What autograd keeps within: bytes of each storage by its address, tensors of the model itself left out.

    Everything that is saved stays alive until the end, so that no address is used twice.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(x)
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        yield found
    alive.clear()
