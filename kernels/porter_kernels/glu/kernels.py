"""Kernels of glu, packed_glu and activation, over tiles of rows and columns; no row is read twice."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.elementary import normal_cdf, sigmoid
from porter_kernels.launch import tl, triton


@triton.jit
def _activate(x, ACT: tl.constexpr, ALPHA: tl.constexpr):
    """act(x) and its derivative, float32."""
    if ACT == "silu":
        s, ds = sigmoid(x, ALPHA)
        y, dydx = x * s, s + ALPHA * x * ds
    elif ACT == "gelu":
        cdf, density = normal_cdf(x)
        y, dydx = x * cdf, cdf + x * density
    elif ACT == "gelu_tanh":
        # (1 + tanh(u)) / 2 = sigmoid(2u), which does not cancel for negative u.
        RATE: tl.constexpr = 1.5957691216057308
        near = tl.minimum(tl.maximum(x, -16.0), 16.0)  # saturated beyond; keeps the cube finite
        square = near * near
        s, ds = sigmoid(near * (1.0 + 0.044715 * square), RATE)
        y, dydx = x * s, s + x * ds * (RATE + 3.0 * 0.044715 * RATE * square)
    elif ACT == "relu":
        y, dydx = tl.where(x < 0, 0.0, x), tl.where(x > 0, 1.0, 0.0)
    else:
        tl.static_assert(ACT == "relu2")
        r = tl.where(x < 0, 0.0, x)
        y, dydx = r * r, 2.0 * r
    return y, dydx


@triton.jit
def _activate_within(gate, ACT: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, CLAMP_ACT: tl.constexpr):
    """The same of what the limit holds. At the limit the derivative passes, beyond it is 0, as torch.clamp has it."""
    held = gate
    if LIMIT is not None and not CLAMP_ACT:
        held = tl.where(gate > LIMIT, LIMIT, gate)  # a NaN is kept
    y, dydx = _activate(held, ACT, ALPHA)
    if LIMIT is not None:
        if CLAMP_ACT:
            dydx = tl.where(y <= LIMIT, dydx, 0.0)
            y = tl.where(y > LIMIT, LIMIT, y)
        else:
            dydx = tl.where(gate <= LIMIT, dydx, 0.0)
    return y, dydx


@triton.jit
def _offset_within(up, LIMIT: tl.constexpr, UP_OFFSET: tl.constexpr):
    if LIMIT is not None:
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    return up + UP_OFFSET


@triton.jit
def _tile(length, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr):
    """This program's rows, [N, 1], and first column: tiles of the same rows are neighbours."""
    program, tiles = tl.program_id(0).to(tl.int64), (length - 1) // BLOCK_F + 1  # cdiv overflows near 2**31
    return (program // tiles) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None], (program % tiles) * BLOCK_F


@triton.jit
def _load(
    gate_ptr, up_ptr, rows, first, N, width, gate_stride, up_stride,
    GATED: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """gate and up (gate again where nothing is gated), float32."""
    if INTERLEAVED:
        cols = 2 * first + tl.arange(0, 2 * BLOCK_F)[None, :]  # [1, 2 * F]
        pairs = tl.load(gate_ptr + rows * gate_stride + cols, mask=(rows < N) & (cols < width), other=0.0)
        gate, up = tl.split(pairs.to(tl.float32).reshape(BLOCK_N, BLOCK_F, 2))  # [N, F]
    else:
        cols = first + tl.arange(0, BLOCK_F)[None, :]  # [1, F]
        mask = (rows < N) & (cols < width)
        gate = tl.load(gate_ptr + rows * gate_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
        up = gate
        if GATED:
            up = tl.load(up_ptr + rows * up_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    return gate, up


@triton.jit
def _forward_kernel(
    gate_ptr, up_ptr, y_ptr, N, width, gate_stride, up_stride,
    ACT: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, CLAMP_ACT: tl.constexpr, UP_OFFSET: tl.constexpr,
    GATED: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    # width is how many columns of gate_ptr's memory a row takes: 2 * F where gate and up are interleaved
    length = width // 2 if INTERLEAVED else width
    rows, first = _tile(length, BLOCK_N, BLOCK_F)
    gate, up = _load(
        gate_ptr, up_ptr, rows, first, N, width, gate_stride, up_stride, GATED, INTERLEAVED, BLOCK_N, BLOCK_F
    )
    y, _ = _activate_within(gate, ACT, ALPHA, LIMIT, CLAMP_ACT)
    if GATED:
        y *= _offset_within(up, LIMIT, UP_OFFSET)
    cols = first + tl.arange(0, BLOCK_F)[None, :]  # [1, F]
    tl.store(y_ptr + rows * length + cols, y, mask=(rows < N) & (cols < length))


@triton.jit
def _backward_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, N, width, dy_stride, gate_stride, up_stride, dgate_stride, dup_stride,
    ACT: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, CLAMP_ACT: tl.constexpr, UP_OFFSET: tl.constexpr,
    GATED: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    length = width // 2 if INTERLEAVED else width
    rows, first = _tile(length, BLOCK_N, BLOCK_F)
    gate, up = _load(
        gate_ptr, up_ptr, rows, first, N, width, gate_stride, up_stride, GATED, INTERLEAVED, BLOCK_N, BLOCK_F
    )
    y, dydx = _activate_within(gate, ACT, ALPHA, LIMIT, CLAMP_ACT)
    cols = first + tl.arange(0, BLOCK_F)[None, :]  # [1, F]
    mask = (rows < N) & (cols < length)
    dy = tl.load(dy_ptr + rows * dy_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    dgate = dy * dydx
    if GATED:
        dgate *= _offset_within(up, LIMIT, UP_OFFSET)
        dup = dy * y
        if LIMIT is not None:
            dup = tl.where((up <= LIMIT) & (up >= -LIMIT), dup, 0.0)
    if INTERLEAVED:
        cols = 2 * first + tl.arange(0, 2 * BLOCK_F)[None, :]  # [1, 2 * F]
        pairs = tl.join(dgate, dup).reshape(BLOCK_N, 2 * BLOCK_F)
        tl.store(dgate_ptr + rows * dgate_stride + cols, pairs, mask=(rows < N) & (cols < width))
    else:
        tl.store(dgate_ptr + rows * dgate_stride + cols, dgate, mask=mask)
        if GATED:
            tl.store(dup_ptr + rows * dup_stride + cols, dup, mask=mask)
