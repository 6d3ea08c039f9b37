import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from porter.errors import UsageError
from porter.patching.offload import OffloadedCheckpointing
from porter.patching.patch import patch

LAYERS, B, T, D = 5, 2, 12, 32


class LazyTransfer:
    """Copies in order, but only once one is waited for; a source that is gone by then leaves NaN behind."""

    def __init__(self) -> None:
        self.queue: list[tuple[weakref.ref[Tensor], Tensor]] = []
        self.done = 0
        self.allocated: list[Tensor] = []
        self.back: list[Tensor] = []

    def host_buffer(self, x: Tensor) -> Tensor:
        self.allocated.append(torch.full_like(x, torch.nan, requires_grad=False))
        return self.allocated[-1]

    def device_buffer(self, host: Tensor) -> Tensor:
        self.back.append(host)
        return torch.full_like(host, torch.nan)

    def copy(self, source: Tensor, target: Tensor) -> int:
        self.queue.append((weakref.ref(source), target))
        return len(self.queue)

    def wait(self, copied: int) -> None:
        for source, target in self.queue[self.done : copied]:
            found = source()
            with torch.no_grad():
                target.copy_(torch.full_like(target, torch.nan) if found is None else found)
        self.done = max(self.done, copied)


def make_model(dropout: float = 0.3) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=D, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=dropout,
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


def enable(model: LlamaForCausalLM, **options: Any) -> None:
    model._set_gradient_checkpointing(
        gradient_checkpointing_func=lambda function, *args: torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, **options
        )
    )


def gradients(
    model: LlamaForCausalLM, seed: int = 1, before_backward: Callable[[], None] = lambda: None
) -> list[Tensor]:
    torch.manual_seed(seed)
    ids_BT = torch.randint(0, 64, (B, T))
    loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
    before_backward()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def offloaded(depth: int = 2) -> tuple[OffloadedCheckpointing, LazyTransfer]:
    transfer = LazyTransfer()
    return OffloadedCheckpointing(depth=depth, least_bytes=0, transfer=transfer), transfer


@pytest.mark.parametrize("depth", (1, 2, 3, LAYERS + 1))
def test_gradients_and_random_numbers_are_those_of_plain_checkpointing(depth: int) -> None:
    model = make_model()
    enable(model)
    plain, after_plain = gradients(model), torch.rand(3)
    without_dropout = gradients(make_model(dropout=0.0))
    saved, _ = offloaded(depth)
    with saved.applied_to(model):
        for _ in range(2):  # the second step finds buffers that were used
            found, after = gradients(model), torch.rand(3)
            assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
            assert torch.equal(after_plain, after)
    assert not all(torch.equal(a, b) for a, b in zip(plain, without_dropout, strict=True))  # dropout is at work


def test_on_a_cpu_nothing_is_copied_and_gradients_are_those_without_checkpointing() -> None:
    model, saved = make_model(), OffloadedCheckpointing(least_bytes=0)
    plain = gradients(model)
    with saved.applied_to(model):
        found = gradients(model, before_backward=lambda: pytest.fail("copied") if saved.host_bytes else None)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


@pytest.mark.parametrize("depth", (1, 2))
def test_inputs_are_on_the_host_at_the_end_of_forward(depth: int) -> None:
    model, size = make_model(), B * T * D * 4
    saved, transfer = offloaded(depth)

    def look() -> None:
        assert saved.host_bytes == LAYERS * size
        assert saved.device_bytes == depth * size
        assert not transfer.back

    with saved.applied_to(model):
        gradients(model, before_backward=look)
    assert saved.device_bytes == saved.host_bytes == 0
    first_to_last = transfer.allocated
    wanted = first_to_last[: LAYERS - depth][::-1]  # the last ones never left
    assert [id(each) for each in transfer.back] == [id(each) for each in wanted]


def test_what_comes_next_is_fetched_while_a_layer_is_differentiated() -> None:
    model = make_model()
    saved, transfer = offloaded()
    counts: list[int] = []
    for layer in model.model.layers:
        layer.register_full_backward_pre_hook(lambda *_: counts.append(len(transfer.back)))
    with saved.applied_to(model):
        gradients(model)
    # Before a layer's backward its own input and the two after it are asked for: the hook runs before it is recomputed.
    assert counts == [0, 1, 2, 3, 3]


def test_no_more_is_on_the_device_than_what_is_fetched_ahead() -> None:
    model = make_model()
    saved, _ = offloaded()
    sizes: list[int] = []
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: sizes.append(saved.device_bytes))
    with saved.applied_to(model):
        gradients(model, before_backward=sizes.clear)
    assert [size // (B * T * D * 4) for size in sizes] == [3, 3, 2, 1, 0]  # as each layer is computed again


def test_buffers_are_used_again() -> None:
    model = make_model()
    saved, transfer = offloaded()
    with saved.applied_to(model):
        for step in range(3):
            gradients(model, seed=step)
        assert len(transfer.allocated) == LAYERS


def test_a_second_backward_finds_the_inputs_again() -> None:
    model = make_model()
    enable(model)
    plain = gradients(model)
    saved, _ = offloaded()
    torch.manual_seed(1)
    ids_BT = torch.randint(0, 64, (B, T))
    with saved.applied_to(model):
        loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
        parameters = list(model.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
    for a, b, c in zip(plain, first, second, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_two_forwards_before_a_backward() -> None:
    model = make_model()
    enable(model)
    plain = [gradients(model, seed) for seed in (1, 2)]
    saved, _ = offloaded()
    losses = []
    with saved.applied_to(model):
        for seed in (1, 2):
            torch.manual_seed(seed)
            ids_BT = torch.randint(0, 64, (B, T))
            losses.append(model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss)
        found = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    for expected, actual in zip(plain, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_a_forward_without_backward_gives_all_back() -> None:
    model = make_model()
    saved, transfer = offloaded()
    with saved.applied_to(model):
        loss = model(input_ids=torch.zeros(B, T, dtype=torch.long), labels=torch.zeros(B, T, dtype=torch.long)).loss
        assert saved.host_bytes
        del loss
        assert saved.host_bytes == saved.device_bytes == 0
    assert transfer.done >= LAYERS  # nobody's memory is let go while it is read


def test_the_model_is_as_it_was_afterwards() -> None:
    model = make_model()
    saved, _ = offloaded()
    before = [dict(module.__dict__) for module in model.modules()]
    with pytest.raises(KeyError), saved.applied_to(model):
        assert all(layer.gradient_checkpointing for layer in model.model.layers)
        raise KeyError
    for module, attributes in zip(model.modules(), before, strict=True):
        assert module.__dict__.keys() == attributes.keys()


def test_layers_and_options_of_a_model_that_is_checkpointed_are_kept() -> None:
    from functools import partial

    model, seen = make_model(), []
    function = partial(torch.utils.checkpoint.checkpoint, use_reentrant=True, preserve_rng_state=False)
    model._set_gradient_checkpointing(gradient_checkpointing_func=function)
    model.model.layers[1].gradient_checkpointing = False
    saved, transfer = offloaded()
    with saved.applied_to(model):
        seen = [layer._gradient_checkpointing_func.keywords for layer in model.model.layers]
        gradients(model)
    assert seen == [{"preserve_rng_state": False}] * LAYERS
    assert len(transfer.allocated) == LAYERS - 1
    assert model.model.layers[0]._gradient_checkpointing_func is function


def test_an_input_that_is_overwritten_is_refused() -> None:
    saved, _ = offloaded(depth=1)
    layer = nn.Linear(D, D)
    x = torch.randn(B, D, requires_grad=True) * 1
    y = saved.checkpoint(layer, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match=r"the input \[2, 32\] of a layer was modified in place"):
        saved.checkpoint(layer, y)


def test_small_tensors_stay() -> None:
    transfer = LazyTransfer()
    saved = OffloadedCheckpointing(least_bytes=10**6, transfer=transfer)
    saved.checkpoint(nn.Linear(D, D), torch.randn(B, D, requires_grad=True)).sum().backward()
    assert not transfer.allocated


def test_refusals() -> None:
    with pytest.raises(UsageError, match="depth 0"):
        OffloadedCheckpointing(depth=0)
    refused = pytest.raises(UsageError, match="Linear has no module that can be checkpointed")
    with refused, OffloadedCheckpointing().applied_to(nn.Linear(2, 2)):
        pass


def test_with_porters_kernels_in_the_model() -> None:
    model = make_model(dropout=0.0)
    patch(model)
    enable(model)
    plain = gradients(model)
    saved, transfer = offloaded()
    with saved.applied_to(model):
        found = gradients(model)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert len(transfer.allocated) == LAYERS
