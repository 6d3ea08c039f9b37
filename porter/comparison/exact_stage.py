"""The exact stage alone: the executor in the port's spec against HF eager, bit for bit, without golden.

Both are fed HF's own hidden states, layer by layer. With semantics or precision the same question is answered on
golden's, from what those stages compute anyway.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from porter.comparison.lanes import Lane, Nodes
from porter.comparison.measure import bit_equal
from porter.comparison.names import full_name, kind_of
from porter.comparison.one_unit import place_of
from porter.comparison.report import NodeDiff
from porter.comparison.stages import Selection, StageRun, fitted, looked_at, merged_names, not_compared
from porter.specs.schema import Dims


def run_exact(
    dtype: str,
    dims: Dims,
    reference: Lane,
    executor: Lane,
    ids_BT: Tensor,
    selection: Selection,
    *,
    keep_inputs: frozenset[int] = frozenset(),
    advance: Callable[[str], None] = lambda unit: None,
    why: Callable[[str], str] | None = None,
) -> StageRun:
    """Compares one prompt in one dtype.

    Args:
        ids_BT: [1, T].
        keep_inputs: layers whose inputs are kept in the result; the head's is, where it is compared.
        advance: called after each unit.
        why: says why an executor that shows some nodes alone does not show one.
    """
    run = StageRun()
    for unit, given, expected, found in _units(dims, reference, executor, ids_BT, selection):
        if given is not None and (unit == "head" or place_of(unit, dims.layers) in keep_inputs):
            run.inputs[place_of(unit, dims.layers)] = given
        for node in merged_names(expected, found) if found else ():
            name = full_name(unit, node)
            if node in found:
                run.nodes.append(_compare(name, dtype, expected.get(node), found[node]))
            else:
                run.nodes.append(not_compared(name, "exact", dtype, (expected, found), node, why))
            run.declared.add(run.nodes[-1].name)
            if selection.first_bad and run.nodes[-1].status == "WARN":
                return run
        reference.release()
        executor.release()
        advance(unit)
    return run


def _units(
    dims: Dims, reference: Lane, executor: Lane, ids_BT: Tensor, selection: Selection
) -> Iterator[tuple[str, Tensor | None, Nodes, Nodes]]:
    """Each unit with what it is given, and the nodes of both sides; none of a layer that is not selected."""
    for lane in (reference, executor):
        lane.start(ids_BT)
    nodes = reference.embed()
    x_BTD = nodes["embed.out"]
    first = selection.whole or 0 in selection.layers
    yield "embed", None, nodes, executor.embed() if first else {}
    for index in range(dims.layers):
        if not selection.whole and index > selection.last:
            return
        nodes = reference.layer(index, x_BTD)
        taken = None if reference.routing is None else reference.routing.taken
        yield f"layers.{index}", x_BTD, nodes, executor.layer(index, x_BTD, taken) if index in selection.layers else {}
        x_BTD = nodes["resid_post"]
    if not selection.whole:
        return
    at = looked_at(dims, x_BTD.shape[1])
    yield "head", x_BTD, reference.head(x_BTD[:, at]), executor.head(x_BTD[:, at])


def _compare(name: str, dtype: str, reference: Tensor | None, executor: Tensor) -> NodeDiff:
    executor = executor if reference is None else fitted(name, executor, reference)
    equal = None if reference is None else executor.dtype == reference.dtype and bit_equal(executor, reference)
    return NodeDiff(
        name=name, kind=kind_of(name), stage="exact", dtype=dtype,
        shape=tuple(executor.shape), exact=equal,
        status="NOT_COMPARED" if equal is None else "PASS" if equal else "WARN",
        reason="the reference does not show it" if equal is None else "" if equal else _how_far(reference, executor),
    )  # fmt: skip


def _how_far(reference: Tensor | None, executor: Tensor) -> str:
    assert reference is not None
    unequal = ~torch.eq(executor, reference) & ~(executor.isnan() & reference.isnan())
    error = torch.linalg.vector_norm(executor.double() - reference.double())
    size = torch.linalg.vector_norm(reference.double())
    return (
        f"bits differ in {int(unequal.sum()):,} of {executor.numel():,} values, by {float(error / size):.1e} as a whole"
    )
