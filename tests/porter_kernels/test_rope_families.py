"""rope_reference has the bits of the rotation of every family; halve_tables makes its tables of theirs."""

import importlib
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from porter_kernels.rope import rope, rope_reference
from porter_kernels.rope_tables import halve_tables, rope_frequencies, rope_tables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Rotation(NamedTuple):
    """How a family rotates: what rope_reference is told, and what its tables are like."""

    style: Any = "half"
    apply_dtype: Any = "act"
    R: int = 24  # of 24 features
    doubled: Any = "halves"  # None: one column a frequency
    table_dtype: torch.dtype | None = None  # None: the activations'


FAMILIES = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "granite", "phi", "starcoder2", "stablelm",
         "smollm3", "seed_oss", "deepseek_v3", "nanochat"),
        Rotation(),
    ),
    **dict.fromkeys(("gpt_neox", "phi3", "nemotron", "glm4_moe", "qwen3_next"), Rotation(R=12)),
    **dict.fromkeys(("olmo", "olmo2", "olmo3"), Rotation(apply_dtype="fp32", table_dtype=torch.float32)),
    **dict.fromkeys(("esm", "modernbert", "hunyuan_vl"), Rotation(apply_dtype="fp32")),
    **dict.fromkeys(("cohere", "cohere2"), Rotation("interleaved", "fp32", doubled="pairs")),
    **dict.fromkeys(("glm", "glm4"), Rotation("interleaved", R=12)),
    "helium": Rotation("interleaved"),
    "blt": Rotation("interleaved", doubled="pairs"),
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe"), Rotation("interleaved", "fp32", table_dtype=torch.float32)),
    "gpt_oss": Rotation(doubled=None),
    "openai_privacy_filter": Rotation("interleaved", doubled=None),
    **dict.fromkeys(("gptj", "codegen"), Rotation("interleaved", doubled=None)),
    **dict.fromkeys(("gemma3n", "gemma4"), Rotation()),
}  # fmt: skip


def make_tables(rotation: Rotation, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [2, 300, R / 2], the second sample left-padded by 7."""
    positions = torch.stack([torch.arange(300), torch.arange(300).clamp(min=7) - 7])
    inv_freq, _ = rope_frequencies("default", theta=100.0, dim=rotation.R, scaling={}, max_positions=64)
    return rope_tables(
        inv_freq, positions, attention_factor=1.25, inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="act",
        act_dtype=rotation.table_dtype or dtype,
    )  # fmt: skip


def double(table: Tensor, doubled: Any) -> Tensor:
    if doubled is None:
        return table
    return torch.cat((table, table), -1) if doubled == "halves" else table.repeat_interleave(2, -1)


def rotate_theirs(family: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    apply = importlib.import_module(f"transformers.models.{family}.modeling_{family}").apply_rotary_pos_emb
    if family in ("gptj", "codegen"):
        by_position = (apply(x.transpose(1, 2), sin, cos) for x in (q, k))
        return tuple(x.transpose(1, 2) for x in by_position)
    if family in ("gemma3n", "gemma4"):
        return apply(q, cos, sin), apply(k, cos, sin)
    theirs: tuple[Tensor, Tensor] = apply(q, k, cos, sin)
    return theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_reference_has_the_families_bits(family: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    rotation = FAMILIES[family]
    q, k = (torch.randn(s, generator=generator).to(dtype) for s in ((2, 4, 300, 24), (2, 2, 300, 24)))
    cos, sin = make_tables(rotation, dtype)
    theirs = rotate_theirs(family, q, k, double(cos, rotation.doubled), double(sin, rotation.doubled))
    sin = -sin if family == "nanochat" else sin
    mine = rope_reference(q, k, cos, sin, style=rotation.style, apply_dtype=rotation.apply_dtype)
    for x, y in zip(mine, theirs, strict=True):
        assert (x.dtype, y.dtype) == (dtype, dtype)
        assert torch.equal(x, y)


@pytest.mark.parametrize("doubled", ["halves", "pairs"])
def test_halved_tables_are_what_was_doubled(doubled: Any) -> None:
    cos, sin = make_tables(Rotation(), torch.bfloat16)
    halved = halve_tables(double(cos, doubled), double(sin, doubled), doubled=doubled)
    assert torch.equal(halved[0], cos)
    assert torch.equal(halved[1], sin)


def test_unsqueezed_at_two_is_a_transposed_view(generator: torch.Generator) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k = (torch.randn(2, 300, heads, 24, generator=generator) for heads in (4, 2))
    cos, sin = (double(t, "halves") for t in make_tables(Rotation(), torch.float32))
    theirs = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    halved = (t.to(DEVICE) for t in halve_tables(cos, sin, doubled="halves"))
    mine = rope(q.to(DEVICE).transpose(1, 2), k.to(DEVICE).transpose(1, 2), *halved, style="half")
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.transpose(1, 2).cpu(), y, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("table", "doubled"),
    [
        (torch.arange(8.0).expand(1, 3, 8), "halves"),
        (torch.arange(4.0).repeat_interleave(2).expand(1, 3, 8), "halves"),
        (torch.arange(4.0).repeat(2).expand(1, 3, 8), "pairs"),
        (torch.zeros(1, 3, 7), "halves"),
        (torch.zeros(1, 3, 7), "pairs"),
    ],
    ids=["single", "pairs as halves", "halves as pairs", "odd halves", "odd pairs"],
)
def test_other_tables_are_refused(table: Tensor, doubled: Any) -> None:
    with pytest.raises(ValueError, match=rf"cos \[1, 3, .\] differs between .*expected each twice, in {doubled}. Pass"):
        halve_tables(table, table, doubled=doubled)


def test_sine_is_looked_at_too() -> None:
    twice = torch.arange(4.0).repeat(2)
    with pytest.raises(ValueError, match=r"halve_tables: sin \[8\] differs"):
        halve_tables(twice, torch.arange(8.0), doubled="halves")


def test_unknown_doubling_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"doubled is 'half', expected 'halves' or 'pairs'.*repeat_interleave"):
        halve_tables(torch.zeros(8), torch.zeros(8), doubled="half")  # type: ignore[arg-type]


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # Inductor's own import
def test_halving_is_checked_in_compiled_graphs() -> None:
    compiled = torch.compile(lambda t: halve_tables(t, t, doubled="halves")[0] + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.arange(4.0).repeat(2)), torch.arange(4.0) + 1)
    with pytest.raises(RuntimeError, match="cos is not doubled in halves"):
        compiled(torch.arange(8.0))
