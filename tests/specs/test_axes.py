"""Each axis changed once: the mistakes that a port would make."""

import pytest

from porter.specs.axes import changes, first_of_each_kind
from porter.specs.axis_values import axis_values
from porter.specs.blueprint import Blueprint
from porter.specs.family import find_family
from porter.specs.resolve import resolve_size
from porter.specs.tree import builtin_spec_names


@pytest.mark.parametrize("name", builtin_spec_names())
def test_every_change_is_one_valid_other_blueprint(name: str) -> None:
    resolved = resolve_size(find_family(name), "tiny")
    paths = {row.path for row in axis_values(resolved)}
    tried = list(changes(resolved.blueprint))
    hashes = {change.blueprint.hash for change in tried}
    assert len(hashes) == len(tried) and resolved.blueprint.hash not in hashes
    for change in tried:
        assert change.path in paths and change.value != change.tried
        Blueprint.model_validate(change.blueprint.model_dump())


def test_the_axes_that_gemma3_has() -> None:
    tried = list(changes(resolve_size(find_family("gemma3"), "tiny").blueprint))
    paths = {change.path for change in tried}
    assert {"norm.offset", "norm.eps", "block.mlp.act", "block.rope.theta", "block.attn.window", "embed.scale"} <= paths
    assert {"block.attn.softcap", "head.softcap", "block.add_order", "embed.pos_offset"}.isdisjoint(paths)
    thetas = [(change.layer, change.value) for change in tried if change.path == "block.rope.theta"]
    assert thetas == [(0, 10000.0), (5, 1000000.0)]  # once for each kind of layer
    assert {change.path for change in tried if change.rounding} >= {
        "norm.math",
        "block.rope.table_dtype",
        "embed.scale_rounding",
    }


def test_first_of_each_kind() -> None:
    assert first_of_each_kind(resolve_size(find_family("gemma3"), "tiny").blueprint) == [0, 5]
    assert first_of_each_kind(resolve_size(find_family("llama"), "tiny").blueprint) == [0]
