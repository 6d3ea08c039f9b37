"""The parts that every model is made of, written on a tape as HuggingFace computes them, or as porter's kernels do.

Sources: transformers models/*/modeling_*.py for what runs; torch's derivatives.yaml for what each operation keeps:
a product both factors (those that need no gradient aside), a power and an activation their input, rsqrt, softmax,
tanh and sigmoid their result, a linear map its input.
"""

from dataclasses import dataclass

from porter.bench.footprint.plan import Plan
from porter.bench.footprint.tape import Tape
from porter.specs.schema import Norm

WIDE = 4  # bytes of float32


@dataclass
class Writer:
    """Writes parts on a tape.

    Attributes:
        tape: written on.
        plan: of the step.
    """

    tape: Tape
    plan: Plan

    @property
    def element(self) -> int:
        return self.plan.element

    def linear(self, name: str, x: str, width_in: int, width_out: int, *, bias: bool = False) -> str:
        """x @ w.T + b over all rows."""
        parameters = (width_in + bias) * width_out * self.element
        size = self.plan.rows * width_out * self.element
        return self.tape.write(name, size, (x,), saves=(x,), parameter_bytes=parameters)

    def norm(self, name: str, x: str, width: int, spec: Norm, *, groups: int = 1) -> str:
        """A norm over `width` numbers, of `groups` such in each row."""
        size, rows = self.plan.rows * groups * width, self.plan.rows * groups
        parameters = width * self.element * (spec.affine + spec.bias)
        if self.plan.fused:
            stats = self.tape.write(f"{name}.stats", WIDE * rows * (1 if spec.kind == "rms" else 2), ())
            return self.tape.write(name, size * self.element, (x,), saves=(x, stats), parameter_bytes=parameters)
        if spec.kind == "rms":
            return self._rms_norm(name, x, size, rows, spec, parameters)
        if spec.math == "scale_then_cast":
            return self._layer_norm_by_hand(name, x, size, rows, parameters)
        return self._layer_norm(name, x, size, rows, spec, parameters)

    def cast(self, name: str, x: str, size: int) -> str:
        """x in float32."""
        return x if self.element == WIDE else self.tape.write(name, size * WIDE, (x,))

    def uncast(self, name: str, x: str, size: int) -> str:
        """x in the activations' dtype again."""
        return x if self.element == WIDE else self.tape.write(name, size * self.element, (x,))

    def _rms_norm(self, name: str, x: str, size: int, rows: int, spec: Norm, parameters: int) -> str:
        tape, wide = self.tape, size * WIDE
        x_wide = self.cast(f"{name}.float", x, size)
        square = tape.write(f"{name}.square", wide, (x_wide,), saves=(x_wide,), backward_temporary=wide)
        rstd = tape.write(f"{name}.rstd", rows * WIDE, (square,), saves=("result",))
        x_hat = tape.write(f"{name}.hat", wide, (x_wide, rstd), saves=(x_wide, rstd), backward_temporary=wide)
        if not spec.affine:
            return self.uncast(name, x_hat, size)
        if spec.math == "cast_then_scale":
            rounded = self.uncast(f"{name}.rounded", x_hat, size)
            extra = size * self.element
            return tape.write(
                name, extra, (rounded,), saves=(rounded,), parameter_bytes=parameters, backward_temporary=extra
            )
        kept = [x_hat]
        if spec.offset:  # Gemma: 1 + weight, in float32
            kept.append(tape.write(f"{name}.weight", parameters // self.element * WIDE, ()))
        scaled = tape.write(
            f"{name}.scaled", wide, (x_hat,), saves=kept, parameter_bytes=parameters, backward_temporary=wide
        )
        return self.uncast(name, scaled, size)

    def _layer_norm(self, name: str, x: str, size: int, rows: int, spec: Norm, parameters: int) -> str:
        """torch's own, of float32 where the spec says so; its statistics are float32 on a GPU."""
        in_wide = spec.math == "fused_fp32"
        given = self.cast(f"{name}.float", x, size) if in_wide else x
        kept = [given, self.tape.write(f"{name}.stats", 2 * rows * WIDE, ())]
        if spec.offset:
            kept.append(self.tape.write(f"{name}.weight", parameters // (spec.affine + spec.bias), ()))
        y = self.tape.write(
            name, size * (WIDE if in_wide else self.element), (given,), saves=kept, parameter_bytes=parameters
        )
        return self.uncast(f"{name}.out", y, size) if in_wide else y

    def _layer_norm_by_hand(self, name: str, x: str, size: int, rows: int, parameters: int) -> str:
        """Cohere's and Nemotron's: the mean is taken off twice."""
        tape, wide = self.tape, size * WIDE
        x_wide = self.cast(f"{name}.float", x, size)
        centred = tape.write(f"{name}.centred", wide, (x_wide,))
        square = tape.write(f"{name}.square", wide, (centred,), saves=(centred,), backward_temporary=wide)
        rstd = tape.write(f"{name}.rstd", rows * WIDE, (square,), saves=("result",))
        again = tape.write(f"{name}.centred2", wide, (x_wide,))
        x_hat = tape.write(f"{name}.hat", wide, (again, rstd), saves=(again, rstd), backward_temporary=wide)
        kept = [x_hat]
        if self.element < WIDE:
            kept.append(tape.write(f"{name}.weight", parameters // self.element * WIDE, ()))
        scaled = tape.write(
            f"{name}.scaled", wide, (x_hat,), saves=kept, parameter_bytes=parameters, backward_temporary=wide
        )
        return self.uncast(name, scaled, size)

    def activation(self, name: str, x: str, width: int, act: str) -> str:
        """act(x) over `width` features a row, as HF's ACT2FN has it."""
        tape, size = self.tape, self.plan.rows * width * self.element
        if self.plan.fused or act in ("silu", "gelu", "gelu_tanh", "gelu_bloom"):
            return tape.write(name, size, (x,), saves=(x,))
        if act == "relu":
            return tape.write(name, size, (x,), saves=("result",))
        if act == "relu2":
            held = tape.write(f"{name}.relu", size, (x,), saves=("result",))
            return tape.write(name, size, (held,), saves=(held,), backward_temporary=size)
        if act == "quick_gelu":
            scaled = tape.write(f"{name}.scaled", size, (x,))
            gate = tape.write(f"{name}.sigmoid", size, (scaled,), saves=("result",))
            return tape.write(name, size, (x, gate), saves=(x, gate))
        half = tape.write(f"{name}.half", size, (x,))  # gelu_new: 0.5 x (1 + tanh(c (x + 0.044715 x^3)))
        cube = tape.write(f"{name}.cube", size, (x,), saves=(x,), backward_temporary=size)
        scaled = tape.write(f"{name}.scaled", size, (cube,))
        inner = tape.write(f"{name}.inner", size, (x, scaled), hands_on=True)
        inner = tape.write(f"{name}.times", size, (inner,))
        tanh = tape.write(f"{name}.tanh", size, (inner,), saves=("result",))
        one = tape.write(f"{name}.plus", size, (tanh,), hands_on=True)
        return tape.write(name, size, (half, one), saves=(half, one))

    def softcap(self, name: str, x: str, size: int) -> str:
        """c * tanh(x / c) of so many bytes."""
        scaled = self.tape.write(f"{name}.scaled", size, (x,))
        tanh = self.tape.write(f"{name}.tanh", size, (scaled,), saves=("result",))
        return self.tape.write(f"{name}.capped", size, (tanh,))
