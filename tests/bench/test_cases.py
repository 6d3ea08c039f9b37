"""Which cases there are, and how they are chosen."""

import pytest

from porter.bench.cases import AXES, Case, choose_cases, default_cases, shrink
from porter.errors import UsageError


def test_names_are_unique_and_say_all() -> None:
    cases = default_cases()
    assert len({case.name for case in cases}) == len(cases) > 50
    assert {case.op for case in cases} == set(AXES)
    assert all(len(case.shape) == AXES[case.op].count(" x ") + 1 for case in cases)
    assert Case("rms_norm", (8192, 2048), options=(("offset", 1),)).name == "rms_norm 8192x2048 offset=1 bf16"


def test_the_shapes_that_targets_speak_of_are_there() -> None:
    names = {case.name for case in default_cases()}
    for name in (
        "rms_norm 8192x16384 offset=1 bf16", "layer_norm 8192x4096 bf16", "rope 4x4096x32x8x128 bf16",
        "glu 8192x24576 act=gelu_tanh bf16", "glu 8192x14336 act=gelu bf16", "activation 8192x14336 act=relu2 bf16",
        "cross_entropy 4096x151936 bf16", "cross_entropy 8192x256000 softcap=30.0 bf16",
        "linear_cross_entropy 8192x3072x256000 bf16", "add_rms_norm 8192x4096 bf16",
    ):  # fmt: skip
        assert name in names


def test_choosing() -> None:
    assert {case.op for case in choose_cases(ops=["glu", "rope"])} == {"glu", "rope"}
    assert [case.name for case in choose_cases(names=["cross_entropy 8192x32000 bf16"])] == [
        "cross_entropy 8192x32000 bf16"
    ]
    assert {case.shape[-1] for case in choose_cases(ops=["cross_entropy"], names=["8192x*000 bf16"])} == {32000, 256000}
    quick = choose_cases(quick=True)
    assert {case.op for case in quick} == set(AXES) and len(quick) < 30
    assert all(case.dtype == "bfloat16" for case in quick)


def test_refusals_say_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no op is called 'rmsnorm'\n.*did you mean rms_norm\?"):
        choose_cases(ops=["rmsnorm"])
    with pytest.raises(UsageError, match=r"no case is left of --op rope and --case 77"):
        choose_cases(ops=["rope"], names=["77"])


def test_shrunken_cases_are_few_elements_in_float32() -> None:
    cases = default_cases()
    small = shrink(cases)
    assert len(set(small)) == len(small)
    assert {(case.op, case.options) for case in small} == {(case.op, case.options) for case in cases}
    for case in small:
        elements = 1
        for size in case.shape:
            elements *= size
        assert case.dtype == "float32" and elements < 2**18 and not case.small
