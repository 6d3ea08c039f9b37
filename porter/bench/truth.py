"""What an op gives in exact arithmetic: float64, on parts of the result that fit in memory at any size.

Outputs and gradients of rows are found on at most MOST_ROWS whole rows, drawn once and the first and last among them;
what sums over rows (the loss, gradients of norm weights) from all rows, in chunks; the gradient of a head's weight
from all rows too, at MOST_COLUMNS whole rows of the vocabulary. A provider's tensors are also checked to be finite
everywhere. The reference is the function that eager runs, which does not round in float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from porter.bench.cases import LOSSES, Case
from porter.bench.operators import OPERATORS, Inputs

MOST_ROWS, MOST_COLUMNS = 512, 512
CHUNK = 2**26  # elements of a float64 tensor, 0.5 GB; a few are alive at a time
D_LOSS = 0.5  # the loss's gradient: not 1, which a provider might not multiply by, and exact in every dtype


@dataclass(frozen=True)
class Truth:
    """One tensor that a provider gives.

    Attributes:
        name: y, d_x, loss, ...
        value: float64, of the part that is compared.
        part: takes the same part of a provider's tensor.
        scale: the size of what is added up to make an element, against which an element that cancels is judged.
        terms: how many are added.
    """

    name: str
    value: Tensor
    part: Callable[[Tensor], Tensor]
    scale: Tensor | float
    terms: int


def find_truth(case: Case, inputs: Inputs) -> list[Truth]:
    """The outputs, then the gradient of each wanted argument, in the order in which a provider gives them."""
    if case.op == "linear_cross_entropy":
        return _of_linear_loss(case, inputs)
    found = {each.name: each for each in (*_of_rows(case, inputs), *_of_sums(case, inputs))}
    operator = OPERATORS[case.op]
    return [found[name] for name in (*operator.outputs, *(f"d_{name}" for name in operator.wanted))]


def sample(count: int, most: int, device: torch.device) -> Tensor:
    """At most so many indices below count, sorted, the first and last among them; the same on each call."""
    if count <= most:
        return torch.arange(count, device=device)
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randperm(count - 2, generator=generator)[: most - 2] + 1
    return torch.cat((torch.tensor([0, count - 1]), drawn)).sort().values.to(device)


# --- ops whose rows stand alone --------------------------------------------------------------


def _num_rows(case: Case) -> int:
    return case.shape[1] if case.op == "rope" else case.shape[0]


def _row_elements(case: Case) -> int:
    samples, _, heads, key_heads, width = case.shape if case.op == "rope" else (1, 0, 1, 0, case.shape[-1])
    return samples * (heads + key_heads) * width


def _at(x: Tensor, axis: int | None, rows: Tensor) -> Tensor:
    x = x.detach()
    return (x if axis is None else x.index_select(axis, rows)).double() if x.is_floating_point() else x[rows]


def _run(case: Case, inputs: Inputs, rows: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Outputs on some rows, and the gradients of all wanted arguments from them."""
    operator = OPERATORS[case.op]
    tensors = {name: _at(x, operator.rows.get(name), rows) for name, x in inputs.tensors.items()}
    leaves = [tensors[name].requires_grad_() for name in operator.wanted]
    outputs = operator.function(case)(*tensors.values())
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    axis = operator.rows[operator.wanted[0]]
    gradients = [_at(d, axis, rows) for d in inputs.d_outputs] or [torch.full_like(outputs[0], D_LOSS)]
    return tuple(y.detach() for y in outputs), torch.autograd.grad(outputs, leaves, gradients)


def _of_rows(case: Case, inputs: Inputs) -> Iterator[Truth]:
    """What has rows: the outputs that are no loss, and the gradients of arguments with rows."""
    operator = OPERATORS[case.op]
    axis = operator.rows[operator.wanted[0]]
    rows = sample(_num_rows(case), max(2, min(MOST_ROWS, 4 * CHUNK // _row_elements(case))), inputs.leaves[0].device)
    outputs, gradients = _run(case, inputs, rows)
    values = {} if case.op in LOSSES else dict(zip(operator.outputs, outputs, strict=True))
    values |= {f"d_{name}": d for name, d in zip(operator.wanted, gradients, strict=True) if name in operator.rows}
    for name, value in values.items():
        # A logit's gradient is judged by itself: far from the target it is tiny beside its row, and no less wanted.
        tiny = torch.finfo(inputs.leaves[0].dtype).smallest_normal
        scale = tiny if case.op in LOSSES else value.square().mean(-1, keepdim=True).sqrt()
        yield Truth(name, value, lambda x: x.index_select(axis, rows), scale, case.shape[-1])


def _of_sums(case: Case, inputs: Inputs) -> Iterator[Truth]:
    """What all rows go into: a loss, and the gradients of arguments that rows share."""
    operator = OPERATORS[case.op]
    shared = [name for name in operator.wanted if name not in operator.rows]
    if case.op in LOSSES:
        with torch.no_grad():
            loss = sum(_loss_of_chunk(case, inputs, rows) for rows in _chunks(case, inputs))
        assert isinstance(loss, Tensor)
        yield Truth("loss", loss, lambda x: x, 0.0, case.shape[-1])
    if not shared:
        return
    totals: dict[str, Tensor] = {}
    for rows in _chunks(case, inputs):
        gradients = dict(zip(operator.wanted, _run(case, inputs, rows)[1], strict=True))
        totals = {name: gradients[name] + totals.get(name, 0.0) for name in shared}
    for name, value in totals.items():
        yield Truth(f"d_{name}", value, lambda x: x, float(value.square().mean().sqrt()), _num_rows(case))


def _chunks(case: Case, inputs: Inputs) -> Iterator[Tensor]:
    every = torch.arange(_num_rows(case), device=inputs.leaves[0].device)
    yield from _split(every, CHUNK // _row_elements(case))


def _split(indices: Tensor, most: int) -> Iterator[Tensor]:
    most = max(most, 1)
    for start in range(0, len(indices), most):
        yield indices[start : start + most]


def _loss_of_chunk(case: Case, inputs: Inputs, rows: Tensor) -> Tensor:
    tensors = [_at(x, 0, rows) for x in inputs.tensors.values()]
    loss: Tensor = OPERATORS[case.op].function(case)(*tensors)
    return loss


# --- the head and its loss -------------------------------------------------------------------


def _of_linear_loss(case: Case, inputs: Inputs) -> list[Truth]:
    """loss, d_hidden at sampled rows, d_weight at sampled rows of the vocabulary; its logits fit only in chunks."""
    N, H, V = case.shape
    hidden, weight, target = (x.detach() for x in inputs.tensors.values())
    rows, columns = (sample(n, most, hidden.device) for n, most in ((N, MOST_ROWS), (V, MOST_COLUMNS)))
    weight = weight.double()
    loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
    d_weight = torch.zeros(len(columns), H, dtype=torch.float64, device=hidden.device)
    for chunk in _split(torch.arange(N, device=hidden.device), CHUNK // V):
        part, wanted = hidden[chunk].double(), target[chunk]
        logits = part @ weight.T
        loss += F.cross_entropy(logits, wanted, reduction="sum") / N
        d_logits = (logits[:, columns] - logits.logsumexp(-1, keepdim=True)).exp()
        d_logits -= (wanted[:, None] == columns[None]).double()
        d_weight += d_logits.T @ part
    d_hidden = [
        _d_logits(hidden[chunk].double() @ weight.T, target[chunk]) @ weight for chunk in _split(rows, CHUNK // V)
    ]
    found = (
        ("loss", loss, lambda x: x, V),
        ("d_hidden", torch.cat(d_hidden) * (D_LOSS / N), lambda x: x[rows], V),
        ("d_weight", d_weight * (D_LOSS / N), lambda x: x[columns], N),
    )
    return [
        Truth(name, value, part, value.square().mean(-1, keepdim=True).sqrt() if value.ndim else 0.0, terms)
        for name, value, part, terms in found
    ]


def _d_logits(logits: Tensor, target: Tensor) -> Tensor:
    """softmax minus one at the target, in place."""
    logits = logits.softmax(-1)
    logits[torch.arange(len(target), device=target.device), target] -= 1
    return logits
