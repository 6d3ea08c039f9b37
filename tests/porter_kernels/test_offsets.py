"""Tensors of more than 2**31 elements: what is counted multiplies in 64 bits, so that no address wraps round.

The tensors are files with holes, of which the launched programs touch a few bytes, and programs are numbered from
where an address lies past 2**31. Kernels are launched directly: an op would allocate.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels import softcap
from porter_kernels.column_sums import _sum_kernel
from porter_kernels.cross_entropy import kernels as cross_entropy
from porter_kernels.cross_entropy.items import NUM_PARTIALS
from porter_kernels.layer_norm import kernels as layer_norm
from porter_kernels.linear_cross_entropy.scaling import _scale_kernel
from porter_kernels.rms_norm import kernels as rms_norm

if torch.cuda.is_available():
    pytest.skip("programs are renumbered in the interpreter", allow_module_level=True)

from triton.runtime.interpreter import InterpreterBuilder

FAR = 2**31
ROW = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float16)


@pytest.fixture
def far(tmp_path: Path) -> Callable[..., Tensor]:
    """Makes zeros of any size."""

    def make(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
        file = tmp_path / "holes"
        x = torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=dtype).view(shape)
        file.unlink()  # stays mapped
        return x

    return make


@pytest.fixture
def number_programs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Numbers programs from these, an axis each."""
    shipped = InterpreterBuilder.create_get_program_id

    def number(*first: int) -> None:
        def get(self: Any, axis: int) -> Any:
            program = shipped(self, axis)
            if axis < len(first):
                program.data = program.data + program.data.dtype.type(first[axis])
            return program

        monkeypatch.setattr(InterpreterBuilder, "create_get_program_id", get)

    return number


def test_softcap(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    x, dy, y, dx = (far(FAR + 3) for _ in range(4))
    x[FAR:], dy[FAR:] = ROW[:, 0], 1.0
    number_programs(FAR // 4)
    softcap._forward_kernel[(1,)](x_ptr=x, y_ptr=y, n=FAR + 3, cap=2.0, BLOCK=4)
    softcap._backward_kernel[(1,)](dy_ptr=dy, x_ptr=x, dx_ptr=dx, n=FAR + 3, cap=2.0, BLOCK=4)
    tanh = torch.tanh(ROW[:, 0].float() / 2)
    torch.testing.assert_close(y[FAR:].float(), 2 * tanh, rtol=1e-3, atol=0)
    torch.testing.assert_close(dx[FAR:].float(), 1 - tanh**2, rtol=2e-3, atol=0)


def test_column_sums_of_many_columns(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    x, y = far(1, FAR + 3, dtype=torch.float32), far(FAR + 3, dtype=torch.float32)
    x[0, FAR:] = ROW[:, 0].float()
    number_programs(FAR // 4)
    _sum_kernel[(1,)](x_ptr=x, y_ptr=y, P=1, D=FAR + 3, BLOCK_P=1, BLOCK_D=4)
    assert y[FAR:].tolist() == [1.0, 2.0, 3.0]


def test_column_sums_of_long_rows(far: Callable[..., Tensor]) -> None:
    x, y = far(3, FAR // 2, dtype=torch.float32), far(FAR // 2, dtype=torch.float32)
    x[:, :2] = ROW.float()
    _sum_kernel[(1,)](x_ptr=x, y_ptr=y, P=3, D=FAR // 2, BLOCK_P=4, BLOCK_D=2)
    assert y[:3].tolist() == [6.0, 6.0, 0.0]


@pytest.mark.parametrize("HAS_RESIDUAL", [False, True])
def test_rms_norm_forward(HAS_RESIDUAL: bool, far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    x, residual, y, total = (far(FAR + 3, 1) for _ in range(4))
    rstd, w = far(FAR + 3, dtype=torch.float32), torch.ones(1).half()
    x[FAR:], residual[FAR:] = ROW, 1.0
    number_programs(FAR // 4)
    rms_norm._forward_kernel[(1,)](
        x_ptr=x, residual_ptr=residual, w_ptr=w, y_ptr=y, sum_ptr=total, rstd_ptr=rstd, N=FAR + 3, D=1, eps=1.0,
        OFFSET=0, HAS_W=True, HAS_RESIDUAL=HAS_RESIDUAL, BLOCK_N=4, BLOCK_D=1,
    )  # fmt: skip
    normed = (ROW + HAS_RESIDUAL).float()
    torch.testing.assert_close(rstd[FAR:], torch.rsqrt(normed[:, 0] ** 2 + 1))
    torch.testing.assert_close(y[FAR:].float(), normed * rstd[FAR:, None], rtol=1e-3, atol=0)
    assert torch.equal(total[FAR:].float(), normed * HAS_RESIDUAL)


def test_rms_norm_backward(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    x, dy, dsum, dx = (far(FAR + 3, 1) for _ in range(4))
    rstd, dw = far(FAR + 3, dtype=torch.float32), far(FAR // 4 + 1, 1, dtype=torch.float32)
    x[FAR:], dy[FAR:], dsum[FAR:], rstd[FAR:] = ROW, ROW, 1.0, 0.5
    number_programs(FAR // 4)
    rms_norm._backward_kernel[(1,)](
        dy_ptr=dy, dsum_ptr=dsum, x_ptr=x, w_ptr=None, rstd_ptr=rstd, dx_ptr=dx, dw_ptr=dw, N=FAR + 3, D=1,
        P=1, OFFSET=0, HAS_W=False, HAS_DSUM=True, NEED_DW=True, ROWS=1, COLUMNS=0, BLOCK_N=4, BLOCK_D=1, STAGES=1,
        RELOAD=True,
    )  # fmt: skip
    torch.testing.assert_close(dx[FAR:], (ROW - ROW**3 / 4) / 2 + 1)
    assert dw[FAR // 4].item() == (0.5 * ROW**2).sum()


def test_layer_norm_forward(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    x, y, stats = far(FAR + 3, 1), far(FAR + 3, 1), far(2, FAR + 3, dtype=torch.float32)
    x[FAR:] = ROW
    number_programs(FAR // 4)
    layer_norm._forward_kernel[(1,)](
        x_ptr=x, w_ptr=None, b_ptr=torch.ones(1).half(), y_ptr=y, stats_ptr=stats, N=FAR + 3, H=1, D=1,
        eps=0.25, OFFSET=0, HAS_W=False, HAS_B=True, PER_HEAD=False, BLOCK_N=4, BLOCK_D=1,
    )  # fmt: skip
    assert stats[:, FAR:].tolist() == [[1.0, 2.0, 3.0], [2.0] * 3]
    assert y[FAR:].flatten().tolist() == [1.0] * 3


def test_layer_norm_backward(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    H, program = 2, FAR // 4  # the last head's rows, of the last tile
    x, dy, dx = (far(FAR * H + 8, 1) for _ in range(3))
    stats = far(2, FAR * H + 8, dtype=torch.float32)
    partial = far(program + 1, 2 * H, dtype=torch.float32)
    rows = slice(FAR * H + 1, FAR * H + 7, 2)
    x[rows], dy[rows], stats[1, rows] = ROW, 2.0, 1.0
    number_programs(program, 1)
    layer_norm._backward_kernel[(1, 1)](
        dy_ptr=dy, x_ptr=x, w_ptr=torch.ones(2).half(), stats_ptr=stats, dx_ptr=dx, sums_ptr=partial,
        N=FAR * H + 8, FIRST=FAR * H + 2, LAST=FAR * H + 8, H=H, D=1, P=1, OFFSET=0, HAS_W=True,
        NEED_DW=True, NEED_DB=True, ROWS=1, COLUMNS=0, BLOCK_N=4, BLOCK_D=1, STAGES=1, RELOAD=False,
    )  # fmt: skip
    assert partial[program].tolist() == [0.0, 12.0, 0.0, 6.0]
    torch.testing.assert_close(dx[rows][1:], -2 * ROW[1:] ** 2)
    untouched = slice(FAR * H - 64, FAR * H + 2), slice(64), slice(FAR - 64, FAR + 64)  # where 32 bits wrap to, too
    assert not any(dx[each].any() for each in untouched)


def test_scaling_almost_as_many_elements_as_32_bits_count(
    far: Callable[..., Tensor], number_programs: Callable[..., None]
) -> None:
    size = FAR - 2048  # less than a block: size + BLOCK - 1 is beyond 32 bits
    x = far(size)
    x[-3:] = ROW[:, 0]
    number_programs(size // 4096)
    _scale_kernel[(1,)](
        hidden_ptr=x, weight_ptr=None, bias_ptr=None, upstream_ptr=torch.tensor(2.0), hidden_size=size, weight_size=0,
        bias_size=0, HAS_HIDDEN=True, HAS_WEIGHT=False, HAS_BIAS=False, BLOCK=4096,
    )  # fmt: skip
    assert x[-3:].tolist() == [2.0, 4.0, 6.0]


def test_results_of_many_rows(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    N = FAR + 3
    partials, results = far(N, 1, NUM_PARTIALS, dtype=torch.float32), far(6, N, dtype=torch.float32)
    target, correct = far(N, dtype=torch.int64), far(N, dtype=torch.bool)
    partials[FAR:, 0, 1] = 1.0  # the sum of one class
    partials[FAR:, 0, 0] = partials[FAR:, 0, 2] = ROW[:, 0].float()
    number_programs(FAR // 4)
    cross_entropy._results_kernel[(1,)](
        partials_ptr=partials, target_ptr=target, weight_ptr=None, weight_sum_ptr=None, results_ptr=results,
        correct_ptr=correct, N=N, C=1, vocab_size=1, IGNORE=-100, SMOOTHING=0.0, Z_LOSS=0.0, HAS_WEIGHT=False,
        BLOCK_N=4, BLOCK_C=1,
    )  # fmt: skip
    assert results[3, FAR:].tolist() == [1.0, 2.0, 3.0] and correct[FAR:].all()


def test_rms_norm_columns(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    D = FAR // 2 + 8  # the last columns of the last row
    x, dy, dw, rstd = far(3, D), far(3, D), far(D), torch.tensor([1.0, 2.0, 4.0])
    x[2, -4:-1], dy[2, -4:-1] = ROW[:, 0], 2.0
    number_programs(7 + D // 4 - 1)
    rms_norm._backward_kernel[(1,)](
        dy_ptr=dy, dsum_ptr=None, x_ptr=x, w_ptr=None, rstd_ptr=rstd, dx_ptr=x, dw_ptr=dw, N=3, D=D, P=7, OFFSET=0,
        HAS_W=False, HAS_DSUM=False, NEED_DW=False, ROWS=1, COLUMNS=4, BLOCK_N=4, BLOCK_D=1, STAGES=1, RELOAD=False,
    )  # fmt: skip
    assert dw[-4:].tolist() == [8.0, 16.0, 24.0, 0.0]


def test_layer_norm_columns(far: Callable[..., Tensor], number_programs: Callable[..., None]) -> None:
    H, D = 2, FAR // 2 + 8  # the last columns of the last head
    x, dy, sums = far(2 * H, D), far(2 * H, D), far(2, H, D)
    stats = torch.tensor([[0.0, 1.0, 0.0, 1.0], [1.0, 2.0, 1.0, 2.0]])
    x[1::2, -4:-1], dy[1::2, -4:-1] = ROW[:, 0], torch.tensor([[1.0], [2.0]]).half()
    number_programs(7 + D // 4 - 1, 1)
    layer_norm._backward_kernel[(1, 1)](
        dy_ptr=dy, x_ptr=x, w_ptr=None, stats_ptr=stats, dx_ptr=x, sums_ptr=sums, N=2 * H, FIRST=0, LAST=2 * H, H=H,
        D=D, P=7, OFFSET=0, HAS_W=False, NEED_DW=True, NEED_DB=True, ROWS=1, COLUMNS=4, BLOCK_N=4, BLOCK_D=1, STAGES=1,
        RELOAD=False,
    )  # fmt: skip
    assert sums[:, 1, -4:].tolist() == [[0.0, 6.0, 12.0, 0.0], [3.0, 3.0, 3.0, 0.0]]
