"""The ops a model is assembled from, twice: in plain torch as the spec rounds (reference), or fused in Triton.

This is the only place where porter chooses between the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from porter.specs.rope import Rope
from porter.specs.schema import Norm
from porter_kernels import use_interpreter_on_cpu

OpsName = Literal["reference", "triton"]


class Glu(Protocol):
    """act(gate) * (up + up_offset); see porter_kernels.glu."""

    def __call__(
        self,
        gate: Tensor,
        up: Tensor,
        *,
        act: str,
        alpha: float | None = None,
        limit: float | None = None,
        up_offset: float = 0.0,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Ops:
    """The choice; each takes what the spec says and ignores what does not concern it."""

    name: OpsName
    norm: Callable[[Tensor, Tensor | None, Tensor | None, Norm], Tensor]
    rope: Callable[[Tensor, Tensor, Tensor, Tensor, Rope], tuple[Tensor, Tensor]]
    glu: Glu
    activation: Callable[[Tensor, str], Tensor]
    softcap: Callable[[Tensor, float], Tensor]


def make_ops(name: OpsName) -> Ops:
    """The ops of that name; on a machine without a GPU, Triton's run in its interpreter."""
    return _reference_ops() if name == "reference" else _triton_ops()


def _reference_ops() -> Ops:
    use_interpreter_on_cpu()
    from porter_kernels.glu import activation_reference, glu_reference
    from porter_kernels.layer_norm import layer_norm_reference
    from porter_kernels.rms_norm import rms_norm_reference
    from porter_kernels.rope import rope_reference
    from porter_kernels.softcap import softcap_reference

    def norm(x: Tensor, w: Tensor | None, b: Tensor | None, spec: Norm) -> Tensor:
        if spec.kind == "rms":
            assert spec.math in ("cast_then_scale", "scale_then_cast")
            return rms_norm_reference(x, w, spec.eps, offset=spec.offset, math=spec.math)
        assert spec.math != "cast_then_scale"
        return layer_norm_reference(x, w, b, spec.eps, offset=spec.offset, math=spec.math)

    return Ops(
        name="reference",
        norm=norm,
        rope=lambda q, k, cos, sin, spec: rope_reference(
            q, k, cos, sin, style=spec.style, apply_dtype=spec.apply_dtype
        ),
        glu=glu_reference,
        activation=lambda x, act: activation_reference(x, act=act),
        softcap=softcap_reference,
    )


def _triton_ops() -> Ops:
    use_interpreter_on_cpu()
    from porter_kernels.glu import activation, glu
    from porter_kernels.layer_norm import layer_norm
    from porter_kernels.rms_norm import rms_norm
    from porter_kernels.rope import rope
    from porter_kernels.softcap import softcap

    def norm(x: Tensor, w: Tensor | None, b: Tensor | None, spec: Norm) -> Tensor:
        if spec.kind == "rms":
            return rms_norm(x, w, spec.eps, offset=spec.offset)
        return layer_norm(x, w, b, spec.eps, offset=spec.offset)

    return Ops(
        name="triton",
        norm=norm,
        rope=lambda q, k, cos, sin, spec: rope(q, k, cos, sin, style=spec.style),
        glu=glu,
        activation=lambda x, act: activation(x, act=act),
        softcap=softcap,
    )
