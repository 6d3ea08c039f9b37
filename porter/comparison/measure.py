"""How far a node of the port and of the reference are from golden: sums first, so that a node may come in chunks."""

import math

import torch
from torch import Tensor

from porter.comparison.names import StageName, kind_of, place_in_unit
from porter.comparison.report import Local, NodeDiff, Propagated, Worst
from porter.comparison.sampler import Sampler
from porter.comparison.verdicts import FLOORS, Limits, judge

_SAMPLE = 65_536  # elements looked at for ulp_p99
_TRIM = 1e-3  # share of channels left out of `trimmed`, and of a narrow gradient's ρ where that is smaller


class Tally:
    """Sums over one node; `add` takes it whole, or a chunk of tokens at a time.

    Tensors are [B, T, ...] or [B, T, D]; tokens of all samples count alike. A token's error is relative to that token,
    or `of_node` to the mean token, where the value of a token may be zero but for rounding; and that of the node to no
    less than the norm `least`, for the same reason. `limits`: instead of the stage's own thresholds.
    `sampled`: elements are kept for a picture.
    """

    def __init__(
        self,
        name: str,
        stage: StageName,
        dtype: str,
        *,
        of_node: bool = False,
        least: float = 0.0,
        limits: Limits | None = None,
        sampled: bool = False,
    ) -> None:
        self.name, self.stage, self.dtype, self.of_node, self.least = name, stage, dtype, of_node, least
        self.limits = limits
        self.sampler = Sampler() if sampled else None
        self.shape: tuple[int, ...] = ()
        self.exact: bool | None = None
        self.worst: Worst | None = None
        self.nonfinite = [0, 0]
        self.cosine_sums = [0.0, 0.0, 0.0]
        self.bias_sums = [0.0, 0.0, 0]
        self.ulp_p99 = 0.0
        self.elsewhere: list[Tensor] = []  # the reference's squares per channel, its input rounded otherwise
        self._at: list[Tensor] = []
        # Squares per token: port error, reference error, golden, and golden on the reference's input.
        self._tokens: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._channels: list[Tensor] = []  # squares per channel: port error, reference error, golden

    def add(
        self,
        port: Tensor,
        reference: Tensor,
        golden: Tensor,
        executor: Tensor | None,
        at: Tensor | None = None,
        *,
        reference_golden: Tensor | None = None,
    ) -> None:
        """Adds a chunk.

        Args:
            executor: the spec's own arithmetic, for `exact`.
            at: the chunk's tokens, if not 0, 1, 2, …
            reference_golden: golden on the reference's input, where that is not the port's.
        """
        if executor is not None:
            equal = executor.dtype == reference.dtype and bit_equal(executor, reference)
            self.exact = equal if self.exact is None else self.exact and equal
        same = reference_golden is None and torch.equal(port, reference)
        port64_NF, reference64_NF, golden_NF = (_rows(t) for t in (port, reference, golden))
        error_NF = port64_NF - golden_NF
        other_NF = golden_NF if reference_golden is None else _rows(reference_golden)
        reference_error_NF = error_NF if same else reference64_NF - other_NF
        if self.sampler is not None:
            self.sampler.add(golden_NF, error_NF, reference_error_NF)
        port_NF = error_NF.square()
        squares = (port_NF, port_NF if same else reference_error_NF.square(), golden_NF.square())
        golden_N = squares[2].sum(1)
        other_N = golden_N if reference_golden is None else other_NF.square().sum(1)
        self._tokens.append((squares[0].sum(1), squares[1].sum(1), golden_N, other_N))
        channels = [each.sum(0) for each in squares]
        held = self._channels
        self._channels = [a + b for a, b in zip(held, channels, strict=True)] if held else channels
        self._count(port64_NF, reference64_NF, error_NF)
        at = torch.arange(port.shape[1]) if at is None else at
        self._at.append(at)
        self.shape = (port.shape[0], sum(map(len, self._at)), *port.shape[2:])
        if not same:
            self._compare(port, reference, port64_NF, reference64_NF, at)

    def _count(self, port64_NF: Tensor, reference64_NF: Tensor, error_NF: Tensor) -> None:
        self.bias_sums[0] += float(error_NF.sum())
        self.bias_sums[2] += error_NF.numel()
        if not math.isfinite(self.bias_sums[0]) or not math.isfinite(float(reference64_NF.sum())):
            self.nonfinite[0] += int((~torch.isfinite(port64_NF)).sum())
            self.nonfinite[1] += int((~torch.isfinite(reference64_NF)).sum())

    def _compare(
        self, port: Tensor, reference: Tensor, port64_NF: Tensor, reference64_NF: Tensor, tokens: Tensor
    ) -> None:
        difference_NF = (port64_NF - reference64_NF).abs_()
        flat = int(difference_NF.nan_to_num(nan=math.inf).argmax())
        largest = float(difference_NF.flatten()[flat])
        if self.worst is None or not largest <= self.worst.difference:
            at = [int(i) for i in torch.unravel_index(torch.tensor(flat), port.shape)]
            at[1] = int(tokens[at[1]])
            self.worst = Worst(
                largest, tuple(at), float(port64_NF.flatten()[flat]), float(reference64_NF.flatten()[flat])
            )
        products = (port64_NF * reference64_NF, port64_NF.square(), reference64_NF.square())
        self.cosine_sums = [held + float(each.sum()) for held, each in zip(self.cosine_sums, products, strict=True)]
        step = max(1, difference_NF.numel() // _SAMPLE)
        sample = difference_NF.flatten()[::step]
        exponent = torch.frexp(reference64_NF.flatten()[::step]).exponent - 1
        unit = torch.finfo(reference.dtype).eps * torch.exp2(exponent.double())
        ulps = (sample / unit).nan_to_num(nan=math.inf)
        self.ulp_p99 = max(self.ulp_p99, float(ulps.kthvalue(max(1, math.ceil(0.99 * ulps.numel()))).values))

    def local(self, keep_tokens: bool) -> Local:
        """The node's errors; tokens only where a report draws them."""
        port_N, reference_N, golden_N, other_N = (torch.cat(parts) for parts in zip(*self._tokens, strict=True))
        floor = FLOORS[self.dtype]
        size, other_size = (max(float(each_N.sum()), self.least**2) for each_N in (golden_N, other_N))
        reference = [float(reference_N.sum()), *(float(each_F.sum()) for each_F in self.elsewhere)]
        e_port, e_ref = _ratio(float(port_N.sum()), size), _ratio(sum(reference) / len(reference), other_size)
        rho = e_port / max(e_ref, floor)
        if self.of_node and self.dtype != "float32":
            rho = min(rho, self._trimmed_rho(floor))
        least = torch.finfo(torch.float64).tiny
        mean_N = torch.tensor(size / len(golden_N))
        size_N, other_size_N = ((mean_N if self.of_node else each_N).clamp_min(least) for each_N in (golden_N, other_N))
        port_rel_N, reference_rel_N = (port_N / size_N).sqrt(), (reference_N / other_size_N).sqrt()
        scale = max(float(reference_rel_N.max()), floor)
        tokens = tuple(round(value, 4) for value in (port_rel_N / scale).tolist()) if keep_tokens else ()
        at = torch.cat(self._at)
        worst = int(port_rel_N.nan_to_num(nan=math.inf).argmax()) % len(at)
        return Local(
            e_port=e_port,
            e_ref=e_ref,
            rho=rho,
            rho_tok=float(port_rel_N.max()) / scale,
            token=int(at[worst]),
            tokens=tokens,
        )

    def finish(self, propagated: Propagated | None = None) -> NodeDiff:
        """The node's record, judged."""
        kind = kind_of(self.name)
        local = self.local(keep_tokens=place_in_unit(self.name) == "resid_post")
        nonfinite = (self.nonfinite[0], self.nonfinite[1])
        status, reason = judge(self.stage, self.dtype, kind, local, nonfinite, self.limits)
        sizes = math.sqrt(self.cosine_sums[1] * self.cosine_sums[2])  # 0.0 when a side is all zeros
        cosine = 1.0 if self.worst is None else self.cosine_sums[0] / sizes if sizes else 0.0
        squares = float(sum(part[0].sum() for part in self._tokens))
        rms = math.sqrt(squares / self.bias_sums[2]) if squares >= 0 and self.bias_sums[2] else 0.0
        return NodeDiff(
            name=self.name,
            kind=kind,
            stage=self.stage,
            dtype=self.dtype,
            shape=self.shape,
            status=status,
            reason=reason,
            exact=self.exact,
            local=local,
            propagated=propagated,
            worst=self.worst,
            bias=self.bias_sums[0] / self.bias_sums[2] / rms if rms else 0.0,
            trimmed=self._trimmed(),
            cosine=cosine,
            ulp_p99=self.ulp_p99,
            nonfinite=nonfinite,
            sample=self.sampler.finish() if self.sampler else None,
        )

    def _trimmed(self) -> float:
        """The port's error without the channels that are largest in golden."""
        keep_F = self._small_channels()
        return _ratio(float(self._channels[0][keep_F].sum()), float(self._channels[2][keep_F].sum()))

    def _trimmed_rho(self, floor: float) -> float:
        """ρ without them: one number can hold all of a gradient's error, and the ratio of two is chance."""
        keep_F = self._small_channels()
        if not keep_F.any():
            return math.inf
        port, reference, golden = (float(each_F[keep_F].sum()) for each_F in self._channels)
        squares = [reference, *(float(each_F[keep_F].sum()) for each_F in self.elsewhere)]
        size = max(golden, self.least**2)
        return _ratio(port, size) / max(_ratio(sum(squares) / len(squares), size), floor)

    def _small_channels(self) -> Tensor:
        """[F]: which channels are not among golden's largest, of which there is one at least."""
        golden_F = self._channels[2]
        dropped = golden_F.topk(math.ceil(_TRIM * golden_F.numel())).indices
        return torch.ones_like(golden_F, dtype=torch.bool).index_fill_(0, dropped, False)


def measure_propagated(port: Tensor, reference: Tensor, golden: Tensor) -> Propagated:
    """The node when each side ran on its own hidden states."""
    l2 = float(torch.linalg.vector_norm(port.double() - reference.double()))
    size, golden_size = (float(torch.linalg.vector_norm(t.double())) for t in (reference, golden))
    error, floor = (float(torch.linalg.vector_norm(t.double() - golden)) for t in (port, reference))
    return Propagated(
        l2=l2,
        log10_l2=math.log10(l2) if l2 > 0 else None,
        rel_l2=l2 / size if size else 0.0,
        e_port=error / golden_size if golden_size else 0.0,
        e_ref=floor / golden_size if golden_size else 0.0,
        floor_l2=floor,
    )


def bit_equal(executor: Tensor, reference: Tensor) -> bool:
    """Equal, a NaN being equal to a NaN: where both overflow, neither differs."""
    if torch.equal(executor, reference):
        return True
    same_nans = torch.equal(executor.isnan(), reference.isnan())
    return same_nans and bool(executor.isnan().any()) and torch.equal(executor.nan_to_num(), reference.nan_to_num())


def _rows(value: Tensor) -> Tensor:
    return value.reshape(value.shape[0] * value.shape[1], -1).double()


def _ratio(error: float, golden: float) -> float:
    return math.sqrt(error / golden) if golden > 0 else math.sqrt(error)
