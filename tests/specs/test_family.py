"""Finding families, sizes and paths, and what a name that is none is told."""

from collections.abc import Callable
from pathlib import Path

import pytest

from porter.errors import SpecError
from porter.specs.family import find_family, find_model, find_model_type, find_size, read_family
from porter.specs.tree import builtin_spec_names


@pytest.mark.parametrize("name", builtin_spec_names())
def test_every_family_has_a_tiny_size_and_hub_ids_for_the_others(name: str) -> None:
    family = find_family(name)
    assert family.default_size == "tiny"
    for size, values in family.sizes.items():
        assert (values.hf is None) == (size == "tiny")
    assert find_model_type(family.tree["model_type"]).name == name


def test_sizes_are_found_across_families() -> None:
    family, size = find_size("gemma-3-270m")
    assert (family.name, size) == ("gemma3", "gemma-3-270m")
    for name, closest in (("gemma-7", "gemma-7b"), ("lama", "llama")):
        with pytest.raises(SpecError, match=f"no size or family is called '{name}'") as caught:
            find_size(name)
        assert caught.value.expected == f"did you mean {closest}?"
    with pytest.raises(SpecError, match="no size or family is called 'tiny'"):
        find_size("tiny")  # every family has one


def test_a_model_is_a_family_a_size_or_a_path(
    write_family: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_model("gemma")[1] is None
    assert find_model("gemma", "gemma-2b")[1] == "gemma-2b"
    assert (find_model("gpt2")[0].name, find_model("gpt2")[1]) == ("gpt2", None)  # the family, not its size
    assert find_model("smollm2-135m")[1] == "smollm2-135m"
    path = write_family("")
    monkeypatch.chdir(path.parent)
    for name in ("mine.yaml", "./mine.yaml", str(path)):
        assert find_model(name)[0].path == path
    with pytest.raises(SpecError, match="gemma has no size 'gemma-2'") as caught:
        find_model("gemma", "gemma-2")
    assert caught.value.expected == "did you mean gemma-2b?"


def test_names_that_are_none() -> None:
    with pytest.raises(SpecError, match="no family is called 'gema'") as caught:
        find_family("gema")
    assert caught.value.expected == "did you mean gemma?"
    with pytest.raises(SpecError, match="no family has model_type 'gemma9'"):
        find_model_type("gemma9")
    with pytest.raises(SpecError, match=r"none\.yaml: No such file"):
        find_family("none.yaml")


@pytest.mark.parametrize("key", ["model_type", "architecture"])
def test_what_only_a_family_can_say_is_needed(write_family: Callable[..., Path], key: str) -> None:
    path = write_family("")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(key)]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SpecError, match=rf"mine\.yaml: no '{key}'"):
        read_family(path)


def test_a_sizes_tokenizer_has_known_conventions(write_family: Callable[..., Path]) -> None:
    sizes = "\nsizes: {tiny: {config: {}, tokenizer: {bos: 1}}}"
    with pytest.raises(
        SpecError, match=r"mine\.yaml:5: sizes\.tiny\.tokenizer: 'bos' is no convention; did you mean bos_id"
    ):
        read_family(write_family("", sizes=sizes)).size("tiny")


def test_a_sizes_config_is_plain_so_that_a_build_can_copy_it() -> None:
    scaling = find_family("llama").size("llama-3.1-8b").config["rope_scaling"]
    assert type(scaling) is dict and scaling["rope_type"] == "llama3"
