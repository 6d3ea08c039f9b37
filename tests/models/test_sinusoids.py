"""Sinusoidal positions against HF's own tables."""

import pytest
import torch
from transformers.models.ctrl.modeling_ctrl import positional_encoding
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from porter.models.sinusoids import sinusoids


@pytest.mark.parametrize("width", [4, 96, 1280])
def test_the_tables_are_hfs(width: int) -> None:
    ctrl_TD = positional_encoding(700, width, torch.float)
    xglm_TD = XGLMSinusoidalPositionalEmbedding.get_embedding(700, width)
    positions_BT = torch.tensor([[0, 1, 2, 699], [300, 17, 256, 0]])
    assert torch.equal(sinusoids("sinusoidal", positions_BT, width), ctrl_TD[positions_BT])
    assert torch.equal(sinusoids("sinusoidal_closed", positions_BT, width), xglm_TD[positions_BT])
