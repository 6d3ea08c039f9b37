"""A port that is wrong on one path fails the checks of that path, and no others."""

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from porter.models.attention import Attention
from porter.models.layers import Embedding
from porter.models.positions import LayerCache, Positions
from tests.comparison.behaviour_runs import run, statuses

PADDED = "(self._documents_BS < 0).any()"
COUNTED = "return same_BSS.tril(-1).sum(-1)"
SLOTS_WHERE_PACKED = f"return same_BSS.tril(-1).sum(-1) if {PADDED} else torch.arange(slots)[None]"
SLOTS_WHERE_PADDED = f"return torch.arange(slots).expand(len(same_BSS), -1) if {PADDED} else same_BSS.tril(-1).sum(-1)"
SAME_DOCUMENT = "self._documents_BS[:, self.start :, None] == self._documents_BS[:, None, :]"


@dataclass(frozen=True)
class Fault:
    """A function of the port with some of its source changed, and the checks that do not pass then."""

    family: str
    owner: type
    function: str
    changes: dict[str, str]
    found: dict[str, str]


FAULTS = {
    "decoding forgets the position offset": Fault(
        "llama", Positions, "_make_tables", {"self.ids_BT,": "self.ids_BT - self.start,"},
        {"decode": "FAIL", "chunks": "FAIL", "padding.left": "FAIL"},
    ),
    "decoding forgets the offset in a table of positions": Fault(
        "gpt2", Embedding, "forward",
        {"F.embedding(positions.ids_BT +": "F.embedding((positions.ids_BT - positions.start).clamp_min(0) +"},
        {"decode": "FAIL", "chunks": "FAIL", "padding.left": "FAIL"},
    ),
    "decoding keeps the first keys of a window, not the last": Fault(
        "gemma3", Positions, "mask",
        {"distance_BTS < window": "(self._positions_BS[:, None] if self.start else distance_BTS) < window"},
        {"window": "FAIL"},
    ),
    "decoding has a window one wider": Fault(
        "mistral", Positions, "mask", {"distance_BTS < window": "distance_BTS < window + bool(self.start)"},
        {"window": "FAIL"},
    ),
    "a chunk sees its own later tokens": Fault(
        "llama", Positions, "mask", {"distance_BTS >= 0": "distance_BTS >= -self.start"}, {"chunks": "FAIL"}
    ),
    "padding shifts positions": Fault(
        "gpt2", Positions, "_count_positions", {COUNTED: SLOTS_WHERE_PADDED},
        {"padding.left": "FAIL"},
    ),
    "padding shifts positions, which outputs with rotation do not show": Fault(
        "llama", Positions, "_count_positions", {COUNTED: SLOTS_WHERE_PADDED},
        {"padding.left": "WARN"},
    ),
    "padding is attended to": Fault(
        "llama", Positions, "mask",
        {"if self._documents_BS is not None:": f"if self._documents_BS is not None and not {PADDED}:"},
        {"padding.left": "FAIL", "padding.right": "FAIL"},
    ),
    "documents of a row attend to each other": Fault(
        "qwen3", Positions, "mask", {SAME_DOCUMENT: "self._documents_BS[:, None, :] >= 0"}, {"packed": "FAIL"}
    ),
    "positions run on across documents": Fault(
        "gpt2", Positions, "_count_positions", {COUNTED: SLOTS_WHERE_PACKED},
        {"packed": "FAIL"},
    ),
    "positions run on across documents, which the reference does not keep apart": Fault(
        "opt", Positions, "_count_positions", {COUNTED: SLOTS_WHERE_PACKED},
        {"packed": "FAIL"},
    ),
    "a bias by position counts from the newest tokens alone": Fault(
        "bloom", Positions, "alibi",
        {"self._positions_BS[:, None, None]": "(self._positions_BS - self.start).clamp_min(0)[:, None, None]"},
        {"decode": "FAIL", "chunks": "FAIL", "padding.left": "FAIL"},
    ),
    "the cache puts new keys first, where the reference keeps none": Fault(
        "openai-gpt", LayerCache, "update",
        {"torch.cat((self.k_BGSK, k_BGTK), dim=2)": "torch.cat((k_BGTK, self.k_BGSK), dim=2)"},
        {"cache": "NOT_COMPARED", "decode": "FAIL", "chunks": "FAIL", "padding.left": "FAIL"},
    ),
    "all rows attend to the keys of the first": Fault(
        "llama", Attention, "_attend",
        {"spec = self.block.attn\n": "spec = self.block.attn\n    k_BGSK = k_BGSK[:1].expand_as(k_BGSK)\n"},
        {"batch": "FAIL", "padding.left": "FAIL", "padding.right": "FAIL"},
    ),
    "the cache is filled before rotary": Fault(
        "llama", Attention, "forward",
        {
            "cos, sin = positions": "bare_BGTK = k_BGTK\n        cos, sin = positions",
            "k_BGTK, v_BGTK = cache.update(k_BGTK, v_BGTK)":
                "past_BGSK, v_BGTK = cache.update(bare_BGTK, v_BGTK)\n"
                "        k_BGTK = torch.cat((past_BGSK[:, :, : -k_BGTK.shape[2]], k_BGTK), 2)",
        },
        {"cache": "FAIL", "decode": "FAIL", "chunks": "FAIL", "padding.left": "FAIL"},
    ),
    "the cache is kept in bfloat16": Fault(
        "llama", LayerCache, "update",
        {"self.k_BGSK, self.v_BGSK = k_BGTK, v_BGTK":
            "self.k_BGSK, self.v_BGSK = (x.bfloat16().to(x.dtype) for x in (k_BGTK, v_BGTK))"},
        dict.fromkeys(
            ["cache", "decode", "chunks", "padding.left", "padding.right", "batch", "packed", "logits"], "FAIL"
        ),
    ),
    "the cache puts new keys first": Fault(
        "gemma", LayerCache, "update",
        {"torch.cat((self.k_BGSK, k_BGTK), dim=2)": "torch.cat((k_BGTK, self.k_BGSK), dim=2)"},
        {"cache": "FAIL", "decode": "FAIL", "chunks": "FAIL", "padding.left": "FAIL"},
    ),
}  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Puts the fault into the port until the test ends."""
    source = textwrap.dedent(inspect.getsource(getattr(fault.owner, fault.function)))
    for before, after in fault.changes.items():
        assert source.count(before) == 1, f"{before!r} stands {source.count(before)} times in {fault.function}"
        source = source.replace(before, after)
    module, made = vars(sys.modules[fault.owner.__module__]), dict[str, Any]()
    exec(compile(source, f"<{fault.function}, with a fault>", "exec"), module, made)
    monkeypatch.setattr(fault.owner, fault.function, made[fault.function])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_the_checks_of_its_path_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    plant(monkeypatch, fault)
    checks = run(fault.family)
    assert {check: status for check, status in statuses(checks).items() if status != "PASS"} == fault.found, checks


def test_text_of_a_port_that_decodes_wrongly_is_not_what_the_reference_would_write(monkeypatch) -> None:
    plant(monkeypatch, FAULTS["decoding forgets the position offset"])
    found = next(check for check in run("llama", greedy=True) if check.name == "greedy")
    assert found.status == "FAIL" and found.where == "word 2"  # the first follows the prompt alone
    assert "1 agree, then the reference chooses" in found.detail and "rounding does not explain" in found.detail
