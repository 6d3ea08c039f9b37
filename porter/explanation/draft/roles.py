"""Which parameter of porter each module of a layer is: by the flow of data in HF's layer, else by names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from porter.explanation.draft.layout import Layout
from porter.explanation.draft.pool import Pool
from porter.references.unknown import Call, LayerTrace
from porter.specs.document import RULES


@dataclass
class Roles:
    """Slots of a layer -> module paths in it; how the layer is put together where the flow of data says so.

    Attributes:
        facts: axis -> its value: topology, pre_norm, …
        left: modules without a role.
        aliases: module path in a layer, or outside -> what HF calls it, where that is otherwise; as a rule has it.
        stacked: names in HF's layers of parameters that hold all experts.
        wide: modules in a layer that HF keeps in float32; None: HF was not run.
    """

    slots: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    wide: frozenset[str] | None = None


def roles_by_flow(trace: LayerTrace, *, experts: bool) -> Roles:
    """The roles of a layer of attention and one feed-forward branch, as its tensors went.

    Attention comes first: its inputs share one tensor, its output projection is the first linear map of something
    computed to the residual's width; the feed-forward branch follows alike. Of experts, only the input is looked at.
    """
    found = Roles()
    width = trace.given.shape[-1]
    linears = [call for call in trace.calls if call.is_linear]
    outs = [call for call in linears if call.out.shape[-1] == width and not _is_input(call, linears, trace)]
    if not outs:
        return found
    o, down = outs[0], outs[1] if len(outs) > 1 and not experts else None
    before = linears[: linears.index(o)]
    between = linears[linears.index(o) + 1 : linears.index(down) if down else None]
    if not before or not between:
        return found
    if not any("kv_a_proj" in call.path for call in before):  # a latent's projections have names of their own
        _name(found.slots, before, ("attn.qkv",), ("attn.q", "attn.k", "attn.v"))
    found.slots["attn.o"] = o.path
    if down is not None:
        gated = ("mlp.gate_up",) if between[0].out.shape[-1] == 2 * down.given.shape[-1] else ("mlp.up",)
        _name(found.slots, between, gated, ("mlp.gate", "mlp.up"))
        found.slots["mlp.down"] = down.path
    _place_norms(found, trace, before[0].given, o, between[0].given, down)
    taken = set(found.slots.values())
    found.left = [call.path for call in trace.calls if call.weight is not None and call.path not in taken]
    return found


def _is_input(call: Call, linears: list[Call], trace: LayerTrace) -> bool:
    """Whether a linear map reads what another one reads too: q, k, v, gate or up, whatever its width."""
    same = [other for other in linears if other is not call and _equal(other.given, call.given)]
    return bool(same) or _equal(call.given, trace.given)


def _name(slots: dict[str, str], calls: list[Call], alone: tuple[str, ...], several: tuple[str, ...]) -> None:
    """Gives calls their slots: by a letter or word of the slot in the path, else in the order they ran."""
    names = alone if len(calls) == 1 else several if len(calls) == len(several) else ()
    left = list(calls)
    for name in names:
        word = name.partition(".")[2]
        fitting = [call for call in left if re.search(rf"(^|[._w]){word}", call.path.rpartition(".")[2])]
        call = fitting[0] if len(fitting) == 1 else left[0]
        slots[name] = call.path
        left.remove(call)


def _place_norms(found: Roles, trace: LayerTrace, attn_in: Tensor, o: Call, mlp_in: Tensor, down: Call | None) -> None:
    norms = [call for call in trace.calls if call.is_norm]
    facts = found.facts
    ends = ("pre_norm", "inner_norm", "post_norm", "after_norm")
    facts |= {f"{branch}.{end}": False for branch in ("attn", "mlp") for end in ends}
    facts["topology"] = "parallel" if _equal(mlp_in, trace.given) or _equal(mlp_in, attn_in) else "sequential"
    for call in norms:
        if _equal(call.out, o.given):
            found.slots["attn.inner_norm"], facts["attn.inner_norm"] = call.path, True
        elif down is not None and _equal(call.out, down.given):
            found.slots["mlp.inner_norm"], facts["mlp.inner_norm"] = call.path, True
        elif _equal(call.out, attn_in):
            found.slots["attn.norm"], facts["attn.pre_norm"] = call.path, True
            if _equal(mlp_in, attn_in):
                facts["mlp.pre_norm"] = "shared"
        elif down is not None and _equal(call.out, mlp_in) and _goes_on(call, norms, down, trace):
            found.slots["attn.after_norm"], facts["attn.after_norm"] = call.path, True
        elif _equal(call.out, mlp_in):
            found.slots["mlp.norm"], facts["mlp.pre_norm"] = call.path, True
            if _equal(call.given, trace.given):
                facts["topology"] = "parallel"
        elif _equal(call.given, o.out):
            found.slots["attn.post_norm"], facts["attn.post_norm"] = call.path, True
        elif _equal(call.given, down.out) if down is not None else _ends_branch(call, mlp_in, trace):
            found.slots["mlp.post_norm"], facts["mlp.post_norm"] = call.path, True
        elif _equal(call.out, trace.out):
            found.slots["mlp.after_norm"], facts["mlp.after_norm"] = call.path, True
        else:
            _place_head_norm(found, call)
    if _equal(mlp_in, attn_in) and not facts["attn.pre_norm"]:
        facts["topology"] = "parallel"


def _ends_branch(call: Call, mlp_in: Tensor, trace: LayerTrace) -> bool:
    """Whether a norm that runs after the experts had their input is added to the stream, not put in its place."""
    order = [each.path for each in trace.calls]
    readers = [each.path for each in trace.calls if each.is_linear and _equal(each.given, mlp_in)]
    late = bool(readers) and order.index(call.path) > order.index(readers[0])
    return late and call.out.numel() == trace.out.numel() and not _equal(call.out, trace.out)


def _goes_on(call: Call, norms: list[Call], down: Call, trace: LayerTrace) -> bool:
    """Whether the residual stream goes on from a norm's output, not from its input: the sum at the end says it."""
    last = next((other for other in norms if _equal(other.out, trace.out)), None)
    total = trace.out if last is None else last.given
    if call is last or total.numel() != down.out.numel():
        return False
    near, far = (
        (each.reshape(-1) + down.out.reshape(-1) - total.reshape(-1)).abs().max() for each in (call.out, call.given)
    )
    return bool(near < 1e-3 and near < far)


def _place_head_norm(found: Roles, call: Call) -> None:
    last = call.path.rpartition(".")[2]
    for slot, letter in (("attn.q_norm", "q"), ("attn.k_norm", "k")):
        if (
            "_a_" not in last  # a norm of a latent
            and re.match(rf"({letter}|{letter}_|.*_{letter}_|.*{letter}_(norm|layernorm|ln))", last)
            and slot not in found.slots
        ):
            found.slots[slot] = call.path
            return


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.reshape(-1), other.reshape(-1))


def roles_by_name(layout: Layout, pool: Pool) -> Roles:
    """The roles that families give such names: the whole path, else its last part."""
    found = Roles()
    modules = layout.modules()
    for whole in (True, False):
        for slot in RULES["block"]:
            if slot in found.slots or slot.startswith("moe."):
                continue
            for place in pool.places("block", slot):
                bare = place.removesuffix("!")
                fitting = [each for each in modules if _fits(bare, each, whole) and each not in found.slots.values()]
                if len(fitting) == 1 or (fitting and whole):
                    found.slots[slot] = fitting[0]
                    break
    taken = set(found.slots.values())
    found.left = [module for module in modules if module not in taken]
    return found


def _fits(place: str, module: str, whole: bool) -> bool:
    if "{" in place:
        return False
    return module == place if whole else module.rpartition(".")[2] == place.rpartition(".")[2]


def outer_roles(layout: Layout, pool: Pool, vocab: int | None) -> Mapping[str, str]:
    """Slots outside the layers -> module paths, by the names families use and words that such tensors have."""
    words = {
        "embed": r"embed_tokens|wte|word_embeddings$|embed_in|tok_embeddings|embedding|tokens?_embed",
        "pos": r"wpe|position|embed_pos",
        "embed_norm": r"embed.*norm|embedding.*norm", "head": r"lm_head|embed_out|output(_layer)?$|^head",
        "final_norm": r"norm|ln_f|ln$|final",
    }  # fmt: skip
    modules = layout.outer_modules()
    found: dict[str, str] = {}
    tables = [name for name, each in modules.items() if len(each.get("weight") or ()) == 2]
    if len(tables) == 1:
        found["embed"] = tables[0]
    for slot in ("embed", "pos", "embed_norm", "head", "final_norm"):
        places = [place for place in pool.places("globals", slot) if place in modules and place not in found.values()]
        fitting = [each for each in modules if re.search(words[slot], each) and each not in found.values()]
        if slot in ("embed", "head") and vocab is not None:
            fitting = [each for each in fitting if (modules[each].get("weight") or (vocab,))[0] == vocab]
        if slot == "embed":
            fitting = [each for each in fitting if "norm" not in each and "pos" not in each]
        if slot not in found and (places or fitting):
            found[slot] = (places or fitting)[0]
    return found
