"""A family file against HF's own classes: config keys, absent and null keys, tensors; what porter specs check adds.

Each finding is an error with the file and line to correct.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from porter.errors import PorterError, SpecError
from porter.references.config_class import hydration_gaps
from porter.references.unknown import hydrate, is_known, write_stress
from porter.specs.family import Family
from porter.specs.ledger import misfits
from porter.specs.resolve import resolve, resolve_size
from porter.specs.tree import locate
from porter.weights.headers import read_shapes


def audit_family(family: Family, size: str = "tiny") -> Iterator[SpecError]:
    """What of a family disagrees with HF's classes, at one size; nothing where transformers has no such model_type."""
    if not is_known(str(family.tree["model_type"])):
        return
    config = {**family.size(size).config, "model_type": family.tree["model_type"]}
    yield from audit_keys(family, config)
    yield from audit_absent_keys(family, size)
    yield from audit_tensors(family, size, config)


def audit_keys(family: Family, config: Mapping[str, Any]) -> Iterator[SpecError]:
    """Keys that HF's config class has for this config, and that nothing reads."""
    place = locate(family.tree, ("ignore_config",)) or family.path
    for key in resolve(family, hydrate(config)).unread:
        yield SpecError(
            f"{place}: nothing reads config key {key}, which HF's class for {family.tree['model_type']} has",
            "every key of a saved config.json is read by an axis, or ignored with a reason",
            f"Add an axis that reads cfg.{key}, or `ignore_config: {{{key}: why it changes no number}}`.",
        )


def audit_absent_keys(family: Family, size: str) -> Iterator[SpecError]:
    """Keys whose absence, or null, the spec takes otherwise than HF's class."""
    place = locate(family.tree, ("config_defaults",)) or family.path
    for gap in hydration_gaps(family, family.size(size).config):
        how = "null" if gap.null else "absent"
        yield SpecError(
            f"{place}: with config key {gap.key} {how}, {', '.join(gap.axes)} is not what HF computes",
            f"HF's class takes {gap.key} for {gap.default!r} then",
            f"Let the expression that reads cfg.{gap.key} mind {how}: first(cfg.{gap.key}, …)."
            if gap.null
            else f"Add `config_defaults: {{{gap.key}: {gap.default!r}}}`.",
        )


def audit_tensors(family: Family, size: str, config: Mapping[str, Any]) -> Iterator[SpecError]:
    """Tensors that HF's model saves and no rule reads, or that rules name and HF does not save; shapes, too."""
    blueprint = resolve_size(family, size).blueprint
    with TemporaryDirectory() as folder:
        write_stress(config, Path(folder))
        available = {name: shape or () for name, shape in read_shapes(Path(folder)).items()}
    place = locate(family.tree, ("weights", "block")) or family.path
    try:
        wrong = misfits(blueprint, available)
    except PorterError as error:
        yield SpecError(f"{place}: {error.wrong}", error.expected, error.fix)
        return
    for name in wrong:
        told = "is saved by HF, and no rule reads it so" if name in available else "is not saved by HF"
        yield SpecError(
            f"{place}: {name} {told} (size {size})",
            f"the tensors of HF's {blueprint.architecture}, each read once, in its shape",
            "Correct the rule in `weights`, or the axis that adds or shapes the tensor.",
        )
