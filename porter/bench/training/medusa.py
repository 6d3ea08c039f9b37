"""Medusa heads: each predicts a token further ahead from the same hidden states (Cai et al. 2024, arXiv:2401.10774).

Head i is a residual block, x + silu(W x), and a linear map to the vocabulary; its target lies i + 2 positions ahead.
The loss is the model's own plus the heads', weighted by 0.8 ** i, as in the paper's appendix. With k heads all logits
are k + 1 times as many.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from porter.bench.training.trainers import HeadLoss

DECAY, SHIFTED_OUT = 0.8, -100


class MedusaHeads(nn.Module):
    """The heads alone."""

    def __init__(self, count: int, width: int, vocab: int, **factory: Any) -> None:
        """Parameters of nn.Linear's own initialisation.

        Args:
            count: heads.
            width: of a hidden state.
            vocab: classes.
            factory: dtype and device.
        """
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width, **factory) for _ in range(count))
        self.heads = nn.ModuleList(nn.Linear(width, vocab, bias=False, **factory) for _ in range(count))

    def losses(self, hidden_BTD: Tensor, ids_BT: Tensor, loss: HeadLoss) -> list[Tensor]:
        """The mean loss of each head."""
        found = []
        for i, (block, head) in enumerate(zip(self.blocks, self.heads, strict=True)):
            x_ND = (hidden_BTD + functional.silu(block(hidden_BTD))).flatten(0, 1)
            weight_VD = head.weight
            assert isinstance(weight_VD, Tensor)
            found.append(loss(x_ND, weight_VD, shifted(ids_BT, i + 2).flatten()))
        return found


class MedusaModel(nn.Module):
    """A causal language model and heads beside its own, trained together."""

    def __init__(self, model: Any, heads: MedusaHeads, loss: HeadLoss) -> None:
        """Takes HF's model, the heads, and how a head's loss is computed."""
        super().__init__()
        self.model, self.medusa, self.loss = model, heads, loss

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The loss of all heads for [B, T] ids."""
        hidden_BTD = self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        own = self.loss(hidden_BTD.flatten(0, 1), self.model.lm_head.weight, shifted(ids_BT, 1).flatten())
        others = self.medusa.losses(hidden_BTD, ids_BT, self.loss)
        return own + torch.stack([DECAY**i * each for i, each in enumerate(others)]).sum()


def shifted(ids_BT: Tensor, by: int) -> Tensor:
    """[B, T], the id so many positions ahead; SHIFTED_OUT where the sample ends before."""
    return functional.pad(ids_BT[:, by:], (0, min(by, ids_BT.shape[1])), value=SHIFTED_OUT)
