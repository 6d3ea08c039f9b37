"""Providers: whom there is, that peers are imported late, and that porter's ops are right on shrunken shapes."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from porter.bench.cases import AXES, default_cases, shrink
from porter.bench.measure import Loaded, measure_case
from porter.bench.operators import OPERATORS, draw_inputs
from porter.bench.providers.table import ALL, PROVIDERS, Unsupported, choose_providers
from porter.errors import UsageError

CASES = list({(case.op, case.options): case for case in shrink(default_cases())}.values())
PEERS = ("liger_kernel", "cut_cross_entropy", "quack", "cutlass", "transformers")


def test_eager_comes_with_every_choice() -> None:
    assert [each.name for each in choose_providers(["porter", "liger"])] == ["eager", "liger", "porter"]
    assert [each.name for each in choose_providers([])] == list(PROVIDERS)
    with pytest.raises(UsageError, match=r"no provider is called 'ligre'\n.*did you mean liger\?"):
        choose_providers(["ligre"])


def test_nothing_of_a_peer_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, porter.bench.run, porter.bench.providers.liger, porter.bench.providers.cce\n"
        "import porter.bench.providers.quack, porter.bench.providers.own, porter.bench.providers.plain\n"
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert {name.partition(".")[0] for name in run.stdout.split()}.isdisjoint(PEERS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_porter_and_torch_are_right(case) -> None:
    names = [name for name in ("eager", "torch", "porter", "porter-lean") if case.op in PROVIDERS[name].ops]
    providers = [Loaded(name, ALL, PROVIDERS[name].load()) for name in names]
    records = {record.provider: record for record in measure_case(case, providers, None, lambda name: None)}
    assert set(records) == set(names)
    for name, record in records.items():
        assert record.status == "ok" or (name, record.status) == ("torch", "unsupported"), record
        assert "overwrites" not in record.note


def test_every_provider_has_the_ops_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "liger_kernel.transformers.functional", "cut_cross_entropy", "quack",
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    for provider in PROVIDERS.values():
        assert set(provider.load()) == set(provider.ops) <= set(AXES), provider.name


class Peer(ModuleType):
    """Answers every call with what it was called with."""

    def __getattr__(self, name: str):
        return lambda *arguments, **options: SimpleNamespace(name=name, arguments=arguments, options=options)


def call(monkeypatch: pytest.MonkeyPatch, provider: str, module: str, case):
    monkeypatch.setitem(sys.modules, module, Peer(module))
    function = PROVIDERS[provider].load()[case.op](case)
    return function(*draw_inputs(case, torch.device("cpu")).tensors.values())


def case_of(op: str, **options: object):
    wanted = tuple(options.items())
    return next(case for case in CASES if case.op == op and case.options == wanted)


def test_liger_is_called_as_its_models_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "liger_kernel.transformers.functional"
    gemma = call(monkeypatch, "liger", module, case_of("rms_norm", offset=1))
    assert (gemma.name, gemma.options) == ("liger_rms_norm", {"offset": 1.0, "casting_mode": "gemma"})
    assert call(monkeypatch, "liger", module, case_of("rms_norm")).options["casting_mode"] == "llama"
    rope = call(monkeypatch, "liger", module, case_of("rope"))
    assert rope.arguments[2].shape[-1] == rope.arguments[0].shape[-1]  # tables of the head's full width
    assert call(monkeypatch, "liger", module, case_of("glu", act="gelu_tanh")).name == "liger_geglu"
    assert call(monkeypatch, "liger", module, case_of("cross_entropy", softcap=30.0)).options == {"softcap": 30.0}
    chunks = call(monkeypatch, "liger-chunk8", module, case_of("linear_cross_entropy"))
    assert chunks.options == {"chunk_mem_const": 8}
    with pytest.raises(Unsupported, match="it has no act=gelu"):
        call(monkeypatch, "liger", module, case_of("glu", act="gelu"))


def test_torch_says_which_version_has_the_fused_head(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("linear_cross_entropy")
    assert callable(PROVIDERS["torch"].load()[case.op](case)) or not hasattr(torch.nn.functional, case.op)
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    with pytest.raises(Unsupported, match=r"has no linear_cross_entropy; 2\.13 has"):
        PROVIDERS["torch"].load()[case.op](case)


def test_compiled_is_eager_under_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("glu", act="silu")
    monkeypatch.setattr(torch, "compile", lambda function, **options: (function, options))
    function, options = PROVIDERS["compile"].load()[case.op](case)
    gate, up = (x.detach() for x in draw_inputs(case, torch.device("cpu")).tensors.values())
    assert torch.equal(function(gate, up), OPERATORS["glu"].function(case)(gate, up))
    assert options == {"fullgraph": True, "dynamic": False}
