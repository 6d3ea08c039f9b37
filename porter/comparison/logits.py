"""Logits at the tokens that are looked at, a chunk at a time: KL, argmax agreement, mean square error."""

import torch
from torch import Tensor

from porter.comparison.report import Logits, StageName


class LogitsTally:
    """Sums of the propagated logits of one stage."""

    def __init__(self, stage: StageName, dtype: str) -> None:
        self.stage, self.dtype = stage, dtype
        self._at: list[Tensor] = []
        self._kl: list[Tensor] = []
        self._kl_ref: list[Tensor] = []
        self._agree, self._tokens = 0, 0
        self._squares = [0.0, 0.0]

    def add(self, port_NV: Tensor, reference_NV: Tensor, golden_NV: Tensor, at_N: Tensor) -> None:
        """A chunk, at these tokens of the prompt; golden is float64."""
        self._at.append(at_N)
        same = torch.equal(port_NV, reference_NV)
        reference64_NV = reference_NV.double()
        log_reference_NV = reference64_NV.log_softmax(-1)
        log_golden_NV = golden_NV.log_softmax(-1)
        self._kl_ref.append(_kl(log_golden_NV, log_reference_NV))
        self._tokens += reference_NV.shape[0]
        self._squares[1] += float(reference64_NV.square().sum())
        if same:
            self._kl.append(torch.zeros(reference_NV.shape[0], dtype=torch.float64))
            self._agree += reference_NV.shape[0]
            return
        port64_NV = port_NV.double()
        self._kl.append(_kl(log_reference_NV, port64_NV.log_softmax(-1)))
        self._agree += int((port_NV.argmax(-1) == reference_NV.argmax(-1)).sum())
        self._squares[0] += float((port64_NV - reference64_NV).square().sum())

    def finish(self) -> Logits:
        kl_N, kl_ref_N = (torch.cat(parts).clamp_min(0).cpu() for parts in (self._kl, self._kl_ref))
        return Logits(
            stage=self.stage, dtype=self.dtype, kl=float(kl_N.mean()), kl_ref=float(kl_ref_N.mean()),
            worst_kl=float(kl_N.max()), worst_token=int(torch.cat(self._at)[kl_N.argmax()]), tokens=self._tokens, nmse=self._squares[0] / self._squares[1],
            agreement=self._agree / self._tokens,
        )  # fmt: skip


def _kl(log_p_NV: Tensor, log_q_NV: Tensor) -> Tensor:
    return (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1)
