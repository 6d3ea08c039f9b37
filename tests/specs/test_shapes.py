import pytest

from porter.errors import SpecError, UsageError
from porter.specs.shapes import find_shape


def test_a_size_with_fewer_layers() -> None:
    shape = find_shape("gemma-3-270m", layers=7)
    assert shape.blueprint.dims.layers == len(shape.blueprint.blocks) == 7
    assert shape.title == "gemma-3-270m, 7 of 18 layers"
    assert find_shape("gemma-3-270m").title == "gemma-3-270m"
    assert shape.blueprint.blocks == find_shape("gemma-3-270m").blueprint.blocks[:7]


def test_a_family_with_a_size_and_its_default() -> None:
    assert find_shape("llama", "tiny").title == "llama tiny"
    assert find_shape("llama").name in find_shape("llama").family.tree["sizes"]


def test_more_layers_than_the_size_has() -> None:
    assert find_shape("gemma3", "tiny", 12).blueprint.dims.layers == 12


def test_refusals() -> None:
    with pytest.raises(SpecError, match="no size or family is called 'gema-7b'"):
        find_shape("gema-7b")
    with pytest.raises(UsageError, match="--layers 0"):
        find_shape("gemma-7b", layers=0)
