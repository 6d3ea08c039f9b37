"""Elementary functions for kernels, in float32: right for every finite argument, the same interpreted and compiled.

Triton's tanh is a libdevice call, which the interpreter lacks, its sigmoid overflows inside exp for large -x, and its
erf takes more instructions than a GPU can hide behind reading and writing the element. A quotient compiles to seven
instructions, reciprocal to two; exp2 to one, exp to five.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.launch import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def reciprocal(x):
    """1 / x for x in [2**-63, inf]: within 1.4 units of float32's eps (rsqrt.approx.f32 errs by 2**-22.9)."""
    return tl.rsqrt(x * x)


@triton.jit
def sigmoid(x, RATE: tl.constexpr = 1.0):
    """sigmoid(RATE * x), and its derivative by RATE * x without the cancellation in s * (1 - s). RATE is positive."""
    decay = tl.exp2(tl.abs(x) * (-RATE * LOG2_E))
    quotient = reciprocal(1.0 + decay)
    return tl.where(x < 0, decay, 1.0) * quotient, decay * (quotient * quotient)


@triton.jit
def normal_cdf(x):
    """The standard normal distribution up to x, and its density; both keep their relative accuracy in the lower tail.

    cdf(-a) = exp(-a**2 / 2) * t * Q(t), t = 1 / (1 + 0.345 a), Q the polynomial of degree 8 with the least relative
    error for 0 <= a <= 14.2, 2.1e-8; further out the exponential is 0. Summed in float32, the relative error is at most
    (1 + x**2) times 2.8 eps interpreted, of which x**2 is the rounding of the exponent.
    """
    t = reciprocal(tl.fma(tl.abs(x), 0.345, 1.0))
    series = tl.fma(t, -0.0282884075, 0.144855974)
    series = tl.fma(series, t, -0.2703525)
    series = tl.fma(series, t, 0.186326058)
    series = tl.fma(series, t, -0.0370470078)
    series = tl.fma(series, t, 0.111583025)
    series = tl.fma(series, t, 0.117288739)
    series = tl.fma(series, t, 0.13801449)
    series = tl.fma(series, t, 0.137619627)
    bell = tl.exp2(x * x * (-0.5 * LOG2_E))
    tail = bell * (t * series)
    return tl.where(x < 0, tail, 1.0 - tail), 0.3989422804014327 * bell


@triton.jit
def tanh(x):
    return tanh_with_slope(x)[0]


@triton.jit
def tanh_with_slope(x):
    """tanh(x), and its derivative without the cancellation in 1 - tanh**2: of one exponential and one quotient."""
    # Near 0 the quotient would cancel. Polynomial: Cephes tanhf.c (Moshier), relative error 2e-7 below 0.625.
    size = tl.abs(x)
    small = tl.minimum(size, 1.0)
    square = small * small
    series = tl.fma(square, -5.70498872745e-3, 2.06390887954e-2)
    series = tl.fma(series, square, -5.37397155531e-2)
    series = tl.fma(series, square, 1.33314422036e-1)
    series = tl.fma(series, square, -3.33332819422e-1)
    near = tl.fma(small * square, series, small)
    decay = tl.exp2(size * (-2.0 * LOG2_E))
    quotient = reciprocal(1.0 + decay)
    bounded = tl.where(size < 0.625, near, (1.0 - decay) * quotient)
    return tl.where(x < 0, -bounded, bounded), 4.0 * decay * (quotient * quotient)
