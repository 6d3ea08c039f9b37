"""A family: one spec file with its sizes, its shape checked, not yet resolved against a config."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from porter.errors import SpecError, closest
from porter.specs.keys import check_tree
from porter.specs.messages import spec_error
from porter.specs.schema import Size
from porter.specs.tree import OWN, Map, builtin_spec_names, read_own, read_tree, spec_folder


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
            return Size.model_validate(sizes[name].plain())
        except ValidationError as error:
            raise spec_error(error, Size, self.tree, ("sizes", name)) from error


def read_family(path: Path) -> Family:
    """The family in the file `path`, every key known.

    Raises:
        SpecError: with file, line and the closest valid name.
    """
    tree = read_tree(path)
    for key in OWN:
        if not tree.get(key):
            place = tree.where.get(key, path)
            raise SpecError(f"{place}: no {key!r}", f"the top-level key {key!r}", _OWN_EXAMPLE[key])
    check_tree(tree)
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
    for family_name in _files_that_mention(name):
        if name != "tiny" and name in read_own(family_name)["sizes"]:
            return find_family(family_name), name
    sizes = (size for family_name in builtin_spec_names() for size in read_own(family_name)["sizes"])
    names = {*sizes, *builtin_spec_names()} - {"tiny"}
    raise SpecError(f"no size or family is called {name!r}", closest(name, names), "porter specs list shows all.")


def _files_that_mention(text: str) -> list[str]:
    """The families whose file has the text: of many files, the few worth parsing."""
    return [name for name in builtin_spec_names() if text in (spec_folder() / f"{name}.yaml").read_text("utf-8")]


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
    for name in _files_that_mention(model_type):
        if read_own(name)["model_type"] == model_type:
            return find_family(name)
    known = [read_own(name)["model_type"] for name in builtin_spec_names()]
    raise SpecError(
        f"no family has model_type {model_type!r}",
        closest(model_type, known),
        "Write a family file (README, A new architecture) and pass its path.",
    )
