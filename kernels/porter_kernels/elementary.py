"""sigmoid and tanh for kernels, in float32: right for every finite argument, the same interpreted and compiled.

Triton's tanh is a libdevice call, which the interpreter lacks, and its sigmoid overflows inside exp for large -x.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.launch import tl, triton


@triton.jit
def sigmoid(x):
    """sigmoid(x), and its derivative without the cancellation in s * (1 - s)."""
    decay = tl.exp(-tl.abs(x))
    return tl.where(x < 0, decay, 1.0) / (1.0 + decay), decay / ((1.0 + decay) * (1.0 + decay))


@triton.jit
def tanh(x):
    return tanh_with_slope(x)[0]


@triton.jit
def tanh_with_slope(x):
    """tanh(x), and its derivative without the cancellation in 1 - tanh**2: of one exponential and one quotient."""
    # Near 0 the quotient would cancel. Polynomial: Cephes tanhf.c (Moshier), relative error 2e-7 below 0.625.
    small = tl.minimum(tl.maximum(x, -1.0), 1.0)
    square = small * small
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    near = small + small * square * series
    decay = tl.exp(-2.0 * tl.abs(x))
    quotient = 1.0 / (1.0 + decay)
    far = (1.0 - decay) * quotient
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far)), 4.0 * decay * quotient * quotient
