"""porter specs draft: an unknown checkpoint, the nearest family, and its difference driven to zero."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from porter.comparison.exactness import check_exactness
from porter.errors import PorterError
from porter.explanation.draft.dims import heads_of
from porter.explanation.draft.drive import Drive
from porter.explanation.draft.finish import Ending, finish, prune
from porter.explanation.draft.layout import Layout, find_blockers, take_apart
from porter.explanation.draft.nearest import nearest
from porter.explanation.draft.pool import Pool, make_pool
from porter.explanation.draft.probe import Place, Probe
from porter.explanation.draft.roles import Roles, roles_by_flow, roles_by_name
from porter.explanation.draft.vectors import add_vectors
from porter.explanation.draft.write import yaml_of
from porter.models.build import plan_build
from porter.references.renamed import Renamed, read_renamed
from porter.references.unknown import hydrate, is_known, shrink, trace_layers, write_stress
from porter.weights.headers import read_shapes
from porter.weights.sources import read_config

TOKENS = 320
_PARENTS = 4  # nearest families that are tried
_LIKE_NONE = (
    "no known family, changed axis by axis, has tensors of these names and shapes; write `extends: <the family that is "
    "nearest>` and its weight table by hand, and let porter specs check say what is left over"
)


@dataclass
class Draft:
    """What came of it.

    Attributes:
        text: the family file; empty where none could be made.
        parent: what it extends.
        exact: the file is bit-equal with HF, layers and logits, in float32 and bfloat16; None: HF could not be run.
        stuck: where it first differs from HF.
        blockers: what needs code -> a tensor that shows it.
        undecided: what could not be told, in words.
        tried: specs that were run.
    """

    model_type: str
    text: str = ""
    parent: str = ""
    exact: bool | None = None
    stuck: Place | None = None
    blockers: Mapping[str, str] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    tried: int = 0


def draft(folder: Path, hidden: Collection[str] = ()) -> Draft:
    """The draft of a family for the checkpoint in `folder`.

    Args:
        folder: config.json, and safetensors, their headers or their index.
        hidden: families not to learn from, with all that extend them.

    Raises:
        ArtifactError: config.json or the names of the tensors cannot be read.
    """
    config, tensors = read_config(folder), read_shapes(folder)
    pool = make_pool(hidden)
    found = Draft(str(config.get("model_type") or folder.name), blockers=find_blockers(tensors, pool.mixers))
    layout = take_apart(tensors)
    if layout is None:
        found.blockers = {**found.blockers, "no stack of numbered layers": next(iter(tensors))}
    if found.blockers or layout is None:
        return found
    with TemporaryDirectory() as scratch:
        small = _small_model(found, config, Path(scratch))
        if small is None:
            _by_names(found, pool, layout, config)
        else:
            _with_hf(found, pool, config, small, Path(scratch))
    return found


def _small_model(found: Draft, config: Mapping[str, Any], folder: Path) -> Mapping[str, Any] | None:
    """Writes HF's model of the config, made small, with weights that hide nothing; None: HF has no such model."""
    kind = config.get("model_type")
    if not is_known(kind):
        lacking = (
            f"transformers has no causal model of model_type {kind!r}" if kind else "config.json has no model_type"
        )
        found.undecided.append(
            f"{lacking}: nothing was run, so all that names and shapes do not say is the parent's"
            + ("" if kind else '; add "model_type", and HF can be run')
        )
        return None
    try:
        small = shrink(config)
        write_stress(small, folder)
    except PorterError as error:
        found.undecided.append(f"HF could not be run: {error.wrong}; {error.fix}")
        return None
    return small


def _by_names(found: Draft, pool: Pool, layout: Layout, config: Mapping[str, Any]) -> None:
    """The nearest family, changed as far as names and shapes say."""
    roles = roles_by_name(layout, pool)
    best = next(iter(nearest(pool, layout, roles, config, found.model_type)), None)
    found.undecided += _without_role(roles)
    if best is None:
        found.undecided.append(_LIKE_NONE)
    else:
        sketch = prune(best.sketch)
        found.parent = sketch.parent.name
        given = {key: value for key, value in config.items() if key != "model_type"}
        unread = sketch.resolve().unread
        found.undecided += [f"config key {key}: nothing reads it" for key in unread]
        head = _head(found, "by names and shapes alone; nothing was run")
        inherited = sketch.parent.tree["config_defaults"] or {}
        defaults = {key: None for key in inherited if key not in given}  # the parent's may be wrong here
        found.text = yaml_of(sketch, head, {"config_defaults": defaults}, {"tiny": {"config": given}})


def _with_hf(found: Draft, pool: Pool, config: Mapping[str, Any], small: Mapping[str, Any], scratch: Path) -> None:
    layout = take_apart(read_shapes(scratch))
    assert layout is not None
    full = {**small, **hydrate(small), "model_type": small["model_type"]}
    ids_BT = _prompt(full)
    roles = _roles(layout, pool, scratch, full, ids_BT)
    best: Drive | None = None
    for start in nearest(pool, layout, roles, full, found.model_type)[:_PARENTS]:
        try:
            probe = Probe(start.sketch.resolve().blueprint, scratch, ids_BT)
        except PorterError as error:
            found.undecided.append(f"from {start.sketch.parent.name}: {error.wrong}")
            continue
        drive = Drive(start.sketch, pool, probe, start.fixed)
        drive.run()
        found.tried += drive.tried
        if best is None or drive.further_than(best):
            best = drive
        if best.stuck is None:
            break
    if best is None:
        found.undecided += _without_role(roles)
        found.undecided.append(_LIKE_NONE)
        return
    found.undecided.clear()
    _conclude(found, best, pool, config, small, scratch)


def _roles(layout: Layout, pool: Pool, folder: Path, config: Mapping[str, Any], ids_BT: torch.Tensor) -> Roles:
    """By the flow of data in HF's layers, with experts and without; by name what it does not tell."""
    sparse, renamed = layout.sparse(), read_renamed(folder, layout.num_layers)
    kinds = {has: max(i for i, each in enumerate(sparse) if each == has) for has in set(sparse)}
    traces = trace_layers(folder, layout.num_layers, kinds.values(), ids_BT)
    flow = Roles()
    for has, index in sorted(kinds.items(), reverse=True):
        found = roles_by_flow(traces[index], experts=has)
        slots = {slot: renamed.of_layer(index, path, layout.layer) for slot, path in found.slots.items()}
        flow.slots = {**slots, **flow.slots}
        flow.facts = {**found.facts, **flow.facts}
    named, modules = roles_by_name(layout, pool), layout.modules()
    slots = {slot: path for slot, path in flow.slots.items() if path in modules or slot.endswith("norm")}
    experts = any(sparse)
    for slot, path in named.slots.items():
        if slot not in slots and path not in slots.values() and (experts or not flow.slots or "norm" not in slot):
            slots[slot] = path
    taken = set(slots.values())
    roles = Roles(slots, flow.facts, [module for module in modules if module not in taken])
    add_vectors(roles, layout, heads_of(config))
    roles.aliases, roles.stacked = _aliases(layout, renamed, max(kinds.values())), renamed.stacked
    roles.wide = frozenset(
        name.removeprefix(layout.layer.replace("{i}", str(i)) + ".") for name in renamed.wide for i in kinds.values()
    )
    return roles


def _aliases(layout: Layout, renamed: Renamed, index: int) -> dict[str, str]:
    """Modules that HF calls otherwise than the checkpoint does -> how a rule names them."""
    inside = {name: renamed.alias(index, name, layout.layer) for name in layout.modules()}
    outside = {name: renamed.outside(name) for name in layout.outer_modules()}
    return {name: other for name, other in {**outside, **inside}.items() if other is not None}


def _without_role(roles: Roles) -> list[str]:
    """Modules that no slot was found for; numbered ones once."""
    names = dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", module) for module in roles.left)
    return [f"{name}: no role was found for it" for name in names]


def _conclude(
    found: Draft, drive: Drive, pool: Pool, config: Mapping[str, Any], small: Mapping[str, Any], scratch: Path
) -> None:
    """Writes the file, and runs it as any family is run: its word counts, not the search's."""
    found.parent, found.stuck = drive.sketch.parent.name, drive.stuck
    ending = Ending(prune(drive.sketch), {}, {}, (), _plain(small))
    if drive.stuck is None:
        ending = finish(drive.sketch, small, pool, drive.probe, scratch)
    else:
        found.undecided.append(_stuck(drive.stuck))
    found.undecided += ending.undecided
    sizes = {"tiny": {"config": ending.config}}
    if small != config:
        sizes = {"given": {"config": _plain(config)}, **sizes}
    extra = {"config_defaults": ending.defaults, "ignore_config": ending.ignored}
    about = {**ending.config, "model_type": found.model_type, "architectures": [ending.sketch.architecture]}
    (scratch / "config.json").write_text(json.dumps(about), encoding="utf-8")
    for claim in (
        "bit-equal with HF, layers and logits, in float32 and bfloat16, at the size tiny",
        "NOT bit-equal with HF",
    ):
        found.text = yaml_of(ending.sketch, _head(found, claim), extra, sizes)
        problem = _proof(found.text, scratch)
        found.exact = not problem
        if found.exact:
            return
        found.undecided = [*dict.fromkeys([*found.undecided, problem])]


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("model_type", "architectures")}


def _stuck(place: Place) -> str:
    where = f"{place.unit}.{place.node}".rstrip(".")
    return (
        f"{where} in {place.dtype}: no change of one axis, or of two, brings it to HF's bits "
        f"(it differs by {place.residual:.1e} relative)"
    )


def _proof(text: str, checkpoint: Path) -> str:
    """What is wrong with the file, run on the checkpoint; nothing: it is bit-equal."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "draft.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            made = plan_build(
                str(path), size=None, weights=str(checkpoint), overrides=(), dtype="float32", ops="reference",
                device="cpu", prompt=None, tokens=None,
            )  # fmt: skip
            rows = list(check_exactness(made, tokens=TOKENS))
        except PorterError as error:
            return str(error.wrong).replace(str(path), "the draft")
    wrong = [f"{row.first} differs in {row.dtype}, by {row.difference:.1e} relative" for row in rows if not row.exact]
    return "; ".join(wrong)


def _head(found: Draft, claim: str) -> list[str]:
    lines = [f"Drafted by porter specs draft, from {found.parent}: {claim}."]
    return lines + [f"undecided: {each}" for each in found.undecided]


def _prompt(config: Mapping[str, Any]) -> torch.Tensor:
    vocab = int(config.get("vocab_size", 256))
    return torch.randint(vocab, (1, TOKENS), generator=torch.Generator().manual_seed(0))


__all__ = ["Draft", "draft", "replace"]
