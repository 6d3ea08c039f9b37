"""What a checkpoint's tensors say of themselves: told as notes, and of right ones nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from porter.explanation.explain import explain
from porter.explanation.grids import grids
from porter.explanation.weight_notes import note_weights
from porter.models.build import plan_build
from porter.weights.reader import open_weights
from tests.models.tiny import save_tiny, tiny

Tensors = dict[str, Tensor]
LAYER = "model.layers.0"


def notes(folder: Path, change: Callable[[Tensors], object], dtype: str = "float32") -> tuple[str, ...]:
    """What is said of the tiny llama's checkpoint with a change."""
    path = save_tiny("llama", folder, dtype) / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, {"format": "pt"})
    blueprint = tiny("llama").blueprint
    return tuple(note_weights(blueprint, open_weights(blueprint, folder)))


def rows(first: int, last: int, value: Tensor | float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors["model.embed_tokens.weight"][first : last + 1].copy_(torch.as_tensor(value))


def on_grid(name: str, width: int) -> Callable[[Tensors], object]:
    """Matrices of so many columns, on a grid."""

    def change(tensors: Tensors) -> None:
        for key, value in tensors.items():
            if key.startswith("model.layers") and value.ndim == 2 and value.shape[1] == width:
                tensors[key] = grids()[name](value.float()).to(value.dtype)

    return change


CASES: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "zero rows": (rows(500, 511, 0.0), "12 of 512 rows of embed.weight look never trained: zero, at 500 to 511"),
    "constant rows": (
        rows(7, 7, 0.3),
        "1 of 512 rows of embed.weight look never trained: the same number throughout, at 7",
    ),
    "small rows": (
        lambda tensors: [tensors["model.embed_tokens.weight"][id].mul_(0.01) for id in (3, 4, 9)],
        "3 of 512 rows of embed.weight look never trained: below 0.1 of the median row's norm, at 3 to 4, 9",
    ),
    "stored twice": (
        lambda tensors: tensors.update(
            {f"{LAYER}.self_attn.v_proj.weight": tensors[f"{LAYER}.self_attn.k_proj.weight"].clone()}
        ),
        "layers.0.attn.v.weight holds the values of layers.0.attn.k.weight: one tensor, stored twice",
    ),
    "head is the embedding": (
        lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}),
        "head.weight holds the values of embed.weight, though the config says that they are not tied",
    ),
    "cut": (
        lambda tensors: tensors[f"{LAYER}.mlp.down_proj.weight"][90:].zero_(),
        "layers.0.mlp.down.weight ends in zeros: rows 90 to 95 of 96",
    ),
    "int4": (
        on_grid("quantised to int4 (Q4_0)", 160),
        "3 of 21 matrices, layers.0.mlp.down.weight first, hold at most 16 values in each 32: quantised to 4 bits or "
        "fewer, and read back",
    ),
    "truncated": (
        on_grid("rounded to bfloat16", 160),
        "3 of 21 matrices, layers.0.mlp.down.weight first, hold values of bfloat16 in float32",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_noted(name: str, tmp_path: Path) -> None:
    change, said = CASES[name]
    assert notes(tmp_path, change) == (said,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_noted_of_a_right_checkpoint(dtype: str, tmp_path: Path) -> None:
    assert notes(tmp_path, lambda tensors: None, dtype) == ()


def test_explain_tells_notes_and_no_fault(tmp_path: Path) -> None:
    assert notes(tmp_path, rows(500, 511, 0.0))
    given = {"size": "tiny", "dtype": "float32", "ops": "reference", "device": "cpu", "prompt": None, "tokens": 12}
    found = explain(plan_build("llama", weights=str(tmp_path), overrides=(), **given))  # type: ignore[arg-type]
    assert (found.outcome, found.told) == ("nothing", ())
    assert found.notes == (CASES["zero rows"][1],)
