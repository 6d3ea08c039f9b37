"""A fused op as torch sees it: one node for what traces, one light autograd function for what runs.

A call through torch.library costs the host 290 us forward and backward, an autograd function with its launches called
directly 115 (one core of an AMD EPYC, torch 2.13, nothing in the launch). For the norm of a small batch that is most
of the time, so torch.library is asked only when somebody traces: torch.compile, export, fake tensors, dispatch modes.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)


class Launch:
    """A function that launches kernels, registered as the op porter::name; called directly where nobody traces."""

    def __init__(self, name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
        """Registers it.

        Args:
            name: of the op, without porter::.
            function: allocates and launches; its annotations are the op's schema, tensors first, and it writes to none.
            fake: the same outputs, empty, from shapes and dtypes alone.
        """
        self.name, self.function = name, function
        kinds = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
        self.num_tensors = sum(kind in (Tensor, Tensor | None) for kind in kinds)
        self.op = torch.library.custom_op(f"porter::{name}", function, mutates_args=())
        self.op.register_fake(fake)

    def __call__(self, *arguments: Any) -> Any:
        return (self.op if is_traced(arguments[: self.num_tensors]) else self.function)(*arguments)


class Fused(Launch):
    """A launch with a gradient."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        save: Callable[[Any, tuple[Any, ...], Any], None],
        differentiate: Callable[..., Any],
        num_kept: int = 0,
    ) -> None:
        """Registers it.

        Args:
            name: as for Launch.
            function: as for Launch.
            fake: as for Launch.
            save: (ctx, inputs, output), keeps what differentiate needs.
            differentiate: (ctx, gradients of what is returned, None where nobody asked), one gradient an input.
            num_kept: how many of the function's last outputs are for save alone: a call does not return them.
        """
        super().__init__(name, function, fake)
        self.num_kept = num_kept

        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            save(ctx, inputs, output)

        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            refuse_second_derivative(name)
            if gradients[0] is None and not any(gradient is not None for gradient in gradients):
                return (None,) * len(ctx.needs_input_grad)  # what came after has none
            return differentiate(ctx, *gradients)

        def backward_of_all(ctx: Any, *gradients: Tensor | None) -> Any:
            return backward(ctx, *gradients[: len(gradients) - num_kept])

        def forward(ctx: Any, *tensors_and_arguments: Any) -> Any:
            arguments = tensors_and_arguments[-1]
            output = function(*arguments)
            setup_context(ctx, arguments, output)
            return self.returned(output)

        def backward_of_tensors(ctx: Any, *gradients: Tensor | None) -> Any:
            return *backward(ctx, *gradients)[: self.num_tensors], None

        self.op.register_autograd(backward_of_all, setup_context=setup_context)
        # The form in which forward takes ctx: torch skips half of the bookkeeping of the one with setup_context. It
        # looks at each argument and output, so that all arguments go as one, after the tensors that have gradients,
        # and what is kept is no output.
        members = {"forward": staticmethod(forward), "backward": staticmethod(backward_of_tensors)}
        self.apply = lean_apply(type(f"porter_{name}", (torch.autograd.Function,), members))

    def __call__(self, *arguments: Any) -> Any:
        tensors = arguments[: self.num_tensors]
        if is_traced(tensors):
            return self.returned(self.op(*arguments))
        refuse_transforms(self.name)
        if torch.is_grad_enabled():
            return self.apply(*tensors, arguments)
        return self.returned(self.function(*arguments))

    def returned(self, output: Any) -> Any:
        """What a call returns of the function's outputs: all but the kept, one of them alone."""
        if not self.num_kept:
            return output
        return output[0] if len(output) == self.num_kept + 1 else output[: -self.num_kept]


def lean_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """function.apply without what it does for the transforms of torch.func, which takes the host as long again.

    Who calls it has asked refuse_transforms. A tensor that outlived its transform raises: nobody unwraps it.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def refuse_transforms(op: str) -> None:
    """Raises within a transform of torch.func, whose tensors have no memory that a kernel could read."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            f"{op}: called within a transform of torch.func (grad, vmap, jvp), expected autograd alone: the kernel "
            f"has no rule for it. Call {op}_reference there."
        )


def refuse_second_derivative(op: str) -> None:
    """Raises in a backward under create_graph=True: its gradient would be a constant, and nobody would notice."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{op}: asked for a gradient that can be differentiated again (create_graph=True), expected a "
            f"first derivative: the kernel has no other. Call {op}_reference for second derivatives."
        )


def is_traced(tensors: Sequence[Tensor | None]) -> bool:
    """Whether somebody looks at the ops that are called rather than at their values."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    for x in tensors:  # noqa: SIM110  # a generator would take the host, on the path of small calls, twice as long
        if type(x) not in PLAIN and x is not None:
            return True
    return False
