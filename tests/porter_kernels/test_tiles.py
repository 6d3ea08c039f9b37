"""How many rows or elements a program takes shows in no bit of what belongs to one row; kernels keep in bounds."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from porter_kernels import launch
from porter_kernels.glu import activation, glu, packed_glu
from porter_kernels.layer_norm import layer_norm
from porter_kernels.rms_norm import rms_norm
from porter_kernels.rope import Style, rope
from porter_kernels.softcap import softcap
from tests.porter_kernels.gradients import run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 21  # 7 of 3 heads; no multiple of a tile's rows
TILES = [256, 2**16]


def rotate(x: Tensor, style: Style) -> Tensor:
    """x [N, D] as one head at N positions, and as three heads at N / 3."""
    N, D = x.shape
    cos, sin = torch.linspace(-2, 2, 2 * N * (D // 2), device=x.device).view(2, 1, N, D // 2)
    one_head = x[None, None]
    three_heads = x.view(1, N // 3, 3, D).transpose(1, 2)
    y, _ = rope(one_head, one_head, cos, sin, style=style)
    _, z = rope(three_heads, three_heads, cos[:, : N // 3], sin[:, : N // 3], style=style)
    return torch.cat((y.flatten(), z.flatten()))


OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rms_norm": lambda x, rows: rms_norm(x, rows[0], 1e-2, offset=1),
    "layer_norm": lambda x, rows: layer_norm(x, rows[0], rows[1], 1e-2),
    "layer_norm of heads": lambda x, rows: layer_norm(x.view(7, 3, -1), rows, None, 1e-2),
    "glu": lambda x, rows: glu(x, 3 * x, act="gelu_tanh"),
    "glu of halves": lambda x, rows: glu(*torch.cat((x, 3 * x), dim=-1).chunk(2, dim=-1), act="silu"),
    "packed_glu": lambda x, rows: packed_glu(torch.cat((x, 3 * x), dim=-1), act="gelu"),
    "packed_glu interleaved": lambda x, rows: packed_glu(
        torch.stack((x, 3 * x), dim=-1).flatten(1), act="silu", layout="interleaved", limit=1.0
    ),
    "activation": lambda x, rows: activation(x, act="quick_gelu"),
    "softcap": lambda x, rows: softcap(x, 2.0),
    "rope half": lambda x, rows: rotate(x, "half"),
    "rope interleaved": lambda x, rows: rotate(x, "interleaved"),
}


CASES = [(op, D) for op in OPS for D in (1, 63)] + [(op, D) for op in ("rms_norm", "layer_norm") for D in (128, 5000)]


@pytest.mark.skipif(DEVICE == "cuda", reason="compiled, a row's sum is a tree that follows the tile's layout")
@pytest.mark.parametrize(("op", "D"), CASES)
def test_bits_do_not_depend_on_the_tile(
    op: str, D: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, rows = (torch.randn(n, D, generator=generator) for n in (ROWS, 3))
    dy = torch.randn_like(OPS[op](x, rows))
    results = []
    for tile in TILES:
        monkeypatch.setattr(launch, "TILE", tile)
        results.append(run(lambda x: OPS[op](x, rows), [x], [dy]))
    for few, many in zip(*results, strict=True):
        assert torch.equal(few, many)
