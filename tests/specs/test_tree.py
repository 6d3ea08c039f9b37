"""Merging a family onto its parents."""

from collections.abc import Callable
from pathlib import Path

import pytest

from porter.errors import SpecError
from porter.specs.located import read_map
from porter.specs.tree import Map, builtin_spec_names, leaves, locate, merge, read_own, read_tree, spec_folder


def tree_of(folder: Path, text: str) -> Map:
    path = folder / "part.yaml"
    path.write_text(text, encoding="utf-8")
    return read_map(path)


def merged(folder: Path, base: str, over: str) -> Map:
    return merge(tree_of(folder, base), tree_of(folder, over))


def test_families_are_the_files_and_the_base_is_none() -> None:
    names = builtin_spec_names()
    assert names == sorted(path.stem for path in spec_folder().glob("*.yaml") if path.stem != "_base")
    assert {"gemma", "gpt2", "llama", "qwen3"} <= set(names)


def test_merging_is_deep_and_null_sets_null(tmp_path: Path) -> None:
    assert merged(tmp_path, "a: {b: 1, c: {d: 2}, e: 3}", "a: {c: {d: 5, f: 6}, e: null}") == {
        "a": {"b": 1, "c": {"d": 5, "f": 6}, "e": None}
    }


def test_replace_drops_the_parents_map_at_any_depth(tmp_path: Path) -> None:
    assert merged(tmp_path, "a: {b: {c: 1}, d: 2}", "a: {b: {_replace: true, e: 3}}") == {"a": {"b": {"e": 3}, "d": 2}}
    assert merged(tmp_path, "a: {b: 1}", "a: {_replace: true, c: {_replace: true, d: 2}}") == {"a": {"c": {"d": 2}}}
    assert merged(tmp_path, "a: null", "a: {b: {_replace: true, c: 1}}") == {"a": {"b": {"c": 1}}}
    assert merged(tmp_path, "a: {b: 1}", "a: {_replace: false, c: 2}") == {"a": {"b": 1, "c": 2}}
    with pytest.raises(SpecError, match=r"part\.yaml:1: _replace = 'maybe'"):
        merged(tmp_path, "a: {b: 1}", "a: {_replace: maybe}")


def test_scaling_and_weight_rules_are_atomic(tmp_path: Path) -> None:
    assert merged(tmp_path, "rope: {scaling: {factor: 2}}", "rope: {scaling: {rope_type: yarn}}") == {
        "rope": {"scaling": {"rope_type": "yarn"}}
    }
    base = "weights: {block: {attn.o: {src: a, transpose: true}, attn.q: b}}"
    assert merged(tmp_path, base, "weights: {block: {attn.o: {src: c}}}") == {
        "weights": {"block": {"attn.o": {"src": "c"}, "attn.q": "b"}}
    }


def test_merging_leaves_both_sides_and_keeps_the_places_of_the_winner(tmp_path: Path) -> None:
    base, over = tree_of(tmp_path, "a: {b: 1,\n  c: 2}"), tree_of(tmp_path, "\n\n\na: {b: 5}")
    both = merge(base, over)
    assert (str(locate(both, ("a", "b"))), str(locate(both, ("a", "c")))) == (
        f"{tmp_path / 'part.yaml'}:4",
        f"{tmp_path / 'part.yaml'}:2",
    )
    both["a"].put("b", 9, None)
    assert (base["a"]["b"], over["a"]["b"]) == (1, 5)


def test_locate_ends_at_the_deepest_key_there_is(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "a:\n  b: {c: 1}")
    assert locate(tree, ("a", "b", "x", "y")).line == 2  # type: ignore[union-attr]
    assert locate(tree, ("z",)) is None
    assert list(leaves(tree)) == [(("a", "b", "c"), 1)]


def test_model_type_architecture_and_sizes_are_not_inherited(write_family: Callable[..., Path]) -> None:
    path = write_family("", sizes="")
    path.write_text("extends: gemma2\n", encoding="utf-8")
    assert not {"model_type", "architecture", "sizes", "extends"} & set(read_tree(path))


@pytest.mark.parametrize("name", builtin_spec_names())
def test_what_a_file_says_itself_is_read_without_its_configs(name: str) -> None:
    own, tree = read_own(name), read_tree(spec_folder() / f"{name}.yaml")
    assert (own["model_type"], own["architecture"]) == (tree["model_type"], tree["architecture"])
    assert {size: values.get("hf") for size, values in own["sizes"].items()} == {
        size: values.get("hf") for size, values in tree["sizes"].items()
    }
    assert own.where["sizes"] == tree.where["sizes"]


def test_the_chain_of_parents(write_family: Callable[..., Path]) -> None:
    write_family("norm: {offset: 0}", name="middle")
    tree = read_tree(write_family("embed: {scale: null}", parent="middle"))
    assert (tree["norm"]["offset"], tree["embed"]["scale"], tree["norm"]["kind"]) == (0, None, "rms")
    assert tree["norm"].where["kind"].file == spec_folder() / "_base.yaml"


def test_a_file_may_be_called_what_its_parent_is_called(write_family: Callable[..., Path]) -> None:
    assert (
        read_tree(write_family("norm: {offset: 0}", parent="gemma", name="gemma"))["norm"]["math"] == "scale_then_cast"
    )


def test_circles_and_unknown_parents(write_family: Callable[..., Path]) -> None:
    write_family("", parent="second", name="first")
    second = write_family("", parent="first", name="second")
    with pytest.raises(SpecError, match="extends itself"):
        read_tree(second)
    with pytest.raises(SpecError, match=r"mine\.yaml:1: extends 'gema', which is no family") as caught:
        read_tree(write_family("", parent="gema"))
    assert caught.value.expected == "did you mean gemma?"
