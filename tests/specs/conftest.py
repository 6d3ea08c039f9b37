"""Family files written by a test."""

from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = "extends: {parent}\nmodel_type: mine\narchitecture: MineForCausalLM\n"
SIZES = """
sizes:
  tiny:
    config: {vocab_size: 512, hidden_size: 96, intermediate_size: 160, num_hidden_layers: 4, num_attention_heads: 4,
             num_key_value_heads: 2, head_dim: 32, max_position_embeddings: 4096, rms_norm_eps: 1.0e-6, x: 3}
"""
FIRST_LINE = 4  # of the text that a test gives


@pytest.fixture
def write_family(tmp_path: Path) -> Callable[..., Path]:
    """A file of a family that extends `parent`, with `text` from line 4 on and the sizes after it."""

    def write(text: str, *, parent: str = "gemma2", sizes: str = SIZES, name: str = "mine") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(HEAD.format(parent=parent) + text + sizes, encoding="utf-8")
        return path

    return write
