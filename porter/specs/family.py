"""A family: one spec file with its sizes, checked for unknown keys, not yet resolved against a config."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError

from porter.errors import SpecError, closest
from porter.specs.schema import Block, Dims, Embed, Head, Norm, Size, Strict, Tokenizer, Weights
from porter.specs.tree import OWN, Map, Where, builtin_spec_names, locate, read_tree, spec_folder


class Pattern(Strict):
    """An axis that varies over the layers: `by` gives one case a layer, each case is merged onto `block`."""

    by: str | list[str] = Field(description="Expression or list: one case name for each layer.")
    cases: dict[str, Block] = Field(description="Case name -> the part of `block` that differs.")


class Document(Strict):
    """The top level of a family file."""

    extends: str | None = Field(None, description="Parent family; this file is merged onto it. Default: _base.")
    model_type: str = Field(description="model_type of config.json.")
    architecture: str = Field(description="HF's class, for example GemmaForCausalLM.")
    requires: list[str] = Field([], description="Expressions that must hold, else the config is refused.")
    config_defaults: dict[str, Any] = Field({}, description="Fills config keys that are absent; null stays null.")
    ignore_config: dict[str, str] = Field({}, description="Config key -> why no field reads it.")
    dims: Dims
    embed: Embed
    norm: Norm
    block: Block
    final_norm: bool = Field(True, description="A norm after the last layer.")
    head: Head
    patterns: dict[str, Pattern] = Field({}, description="Name -> pattern; independent of each other.")
    weights: Weights
    tokenizer: Tokenizer
    sizes: dict[str, Size] = Field(description="Size name -> frozen config. Every family has a tiny size.")


@dataclass(frozen=True)
class Family:
    """A spec file merged onto its parents."""

    name: str
    path: Path
    tree: Map

    @property
    def sizes(self) -> dict[str, Size]:
        return {name: self.size(name) for name in self.tree.get("sizes", {})}

    @property
    def default_size(self) -> str:
        """tiny where there is one, else the first."""
        sizes = self.tree["sizes"]
        return "tiny" if "tiny" in sizes else str(next(iter(sizes)))

    def size(self, name: str) -> Size:
        """The size of that name.

        Raises:
            SpecError: there is none.
        """
        sizes = self.tree.get("sizes") or Map()
        if name not in sizes:
            raise SpecError(f"{self.name} has no size {name!r}", closest(name, sizes), f"porter specs show {self.name}")
        try:
            return Size.model_validate(sizes[name])
        except ValidationError as error:
            raise spec_error(error, self.tree, ("sizes", name)) from error


def read_family(path: Path) -> Family:
    """The family in the file `path`, every key known.

    Raises:
        SpecError: with file, line and the closest valid name.
    """
    tree = read_tree(path)
    for key in OWN:
        if key not in tree:
            raise SpecError(f"{path}: no {key!r}", f"the top-level key {key!r}", _OWN_EXAMPLE[key])
    check_keys(tree, Document)
    return Family(path.stem, path, tree)


_OWN_EXAMPLE = {
    "sizes": "Add sizes, at least `sizes: {tiny: {config: {hidden_size: 96, …}}}`.",
    "model_type": "Add it as config.json has it, for example `model_type: gemma`.",
    "architecture": "Add HF's class, for example `architecture: GemmaForCausalLM`.",
}


def find_family(name: str) -> Family:
    """The family called `name`: of porter, or a path to a YAML file.

    Raises:
        SpecError: neither exists; names the closest one.
    """
    if name in builtin_spec_names():
        return read_family(spec_folder() / f"{name}.yaml")
    if is_path(name):
        return read_family(Path(name).resolve())
    raise SpecError(
        f"no family is called {name!r}", closest(name, builtin_spec_names()), "porter specs list, or a path to a YAML."
    )


def find_size(name: str) -> tuple[Family, str]:
    """The family that has the size `name` (gemma-7b).

    Raises:
        SpecError: no family has it; names the closest size.
    """
    known: dict[str, str] = {}
    for family_name in builtin_spec_names():
        tree = read_tree(spec_folder() / f"{family_name}.yaml")
        known |= dict.fromkeys(tree.get("sizes", {}), family_name)
    if name == "tiny" or name not in known:
        names = {*known, *builtin_spec_names()} - {"tiny"}
        raise SpecError(f"no size or family is called {name!r}", closest(name, names), "porter specs list shows all.")
    return find_family(known[name]), name


def find_model(name: str, size: str | None = None) -> tuple[Family, str | None]:
    """The family and size that `name` means: a family, a size, or a path; `size` picks one of a family's.

    Raises:
        SpecError: nothing is called so, or the family lacks that size.
    """
    if name not in builtin_spec_names() and not is_path(name) and size is None:
        return find_size(name)
    family = find_family(name)
    if size is not None:
        family.size(size)
    return family, size


def is_path(name: str) -> bool:
    """Whether a model's name is the path of a spec file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def find_model_type(model_type: str) -> Family:
    """The family of porter for config.json's model_type.

    Raises:
        SpecError: no family has it.
    """
    known = {}
    for name in builtin_spec_names():
        tree = read_tree(spec_folder() / f"{name}.yaml")
        known[tree["model_type"]] = name
    if model_type not in known:
        raise SpecError(
            f"no family has model_type {model_type!r}",
            closest(model_type, known),
            "Write a family file (README, A new architecture) and pass its path.",
        )
    return find_family(known[model_type])


def check_keys(tree: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...] = ()) -> None:
    """Refuses keys of `tree` that `model` does not have, at any depth."""
    for key, value in tree.items():
        if key in {"_replace", "_if"}:
            continue
        if key not in model.model_fields:
            place = tree.where.get(key) if isinstance(tree, Map) else None
            raise _unknown_key((*path, key), model.model_fields, place)
        if isinstance(value, Mapping):
            for inner, inner_path, inner_value in inner_models(model.model_fields[key].annotation, (*path, key), value):
                check_keys(inner_value, inner, inner_path)


def _unknown_key(path: tuple[str, ...], valid: Mapping[str, Any], place: Where | None) -> SpecError:
    where = f"{place}: " if place else ""
    return SpecError(f"{where}unknown key {'.'.join(path)!r}", closest(path[-1], valid), "Correct or remove the key.")


def inner_models(
    annotation: Any, path: tuple[str, ...], value: Mapping[str, Any]
) -> Iterator[tuple[type[BaseModel], tuple[str, ...], Mapping[str, Any]]]:
    """The models that `value`, a map under `annotation`, is made of: itself, or each of its entries."""
    for kind in members(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in {"RopeScaling", "Size"}:
            yield kind, path, value
        elif get_origin(kind) is dict:
            for key, entry in value.items():
                if isinstance(entry, Mapping):
                    yield from inner_models(get_args(kind)[1], (*path, key), entry)


def members(annotation: Any) -> tuple[Any, ...]:
    """The kinds that an annotation allows, unions and Annotated taken apart."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


def spec_error(error: ValidationError, tree: Mapping[str, Any], path: tuple[str, ...]) -> SpecError:
    """A pydantic error as a SpecError with the file and line of the offending key."""
    first = error.errors()[0]
    full = (*path, *(str(part) for part in first["loc"] if not isinstance(part, int)))
    while full and full[-1].startswith(("literal", "function", "is-instance")):
        full = full[:-1]
    place = locate(tree, full)
    given = "" if isinstance(first["input"], dict) else f" = {first['input']!r}"
    expected = first.get("ctx", {}).get("expected") or first["msg"].removeprefix("Value error, ")
    where = f"{place}: " if place else ""
    return SpecError(
        f"{where}{'.'.join(full)}{given}: {first['msg'].removeprefix('Value error, ')}",
        str(expected),
        "Correct the value; porter specs show --axes lists axes and their values.",
    )
