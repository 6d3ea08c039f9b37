"""Clean ports pass on every path; records, and what is made of them at the edges."""

import math
from dataclasses import replace

import pytest
import torch

from porter.comparison.behaviour import routes, stage
from porter.comparison.behaviour.checks import judge_logits, judge_routes, worst_first
from porter.comparison.behaviour.greedy import WORDS, judge_greedy
from porter.comparison.behaviour.routes import LEAST_TOKENS, PADDING, Route, plan_routes
from porter.comparison.behaviour.walk import Reading, worst_token
from porter.comparison.diff import diff
from porter.comparison.logits_record import Logits, LogitsAt
from porter.comparison.report import Behaviour
from porter.comparison.verdicts import BEHAVIOUR, FLOORS, summarize_behaviour
from porter.errors import UsageError
from tests.comparison.behaviour_runs import run, statuses
from tests.comparison.test_behaviour_faults import FAULTS, plant
from tests.models.tiny import FAMILIES, random_ids, tiny

ROUTES = ["cache", "decode", "chunks", "padding.left", "padding.right", "batch", "packed", "logits", "greedy"]
WINDOWED = {"gemma2", "gemma3", "mistral", "phi3", "qwen2", "qwen3"}
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_clean_port_passes_every_check(family: str, dtype: str) -> None:
    found = run(family, dtype=dtype, greedy=True)
    names = ["cache", "decode", "logits", "greedy"] if dtype != "float32" else ROUTES
    names = [*names, "window"] if dtype == "float32" and family in WINDOWED else names
    assert statuses(found) == dict.fromkeys(names, "PASS"), found
    assert all(check.measured <= 1.5 for check in found if check.name != "greedy"), found  # well below the limits


def test_a_port_that_keeps_documents_apart_passes_though_the_reference_does_not() -> None:
    found = {check.name: check for check in run("opt")}
    assert {check.status for check in found.values()} == {"PASS"}, found
    assert found["packed"].detail.endswith("; the reference itself computes otherwise")


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_a_clean_port_whose_scores_are_biased_by_position_passes(family: str) -> None:
    found = run(family)
    assert {*statuses(found).values()} == {"PASS"}, found


def test_a_port_is_decoded_though_its_reference_keeps_no_cache() -> None:
    found = statuses(run("openai-gpt", greedy=True))
    assert found.pop("cache") == "NOT_COMPARED"
    assert found == dict.fromkeys([name for name in ROUTES if name != "cache"], "PASS")


@pytest.mark.parametrize("family", ["gemma3", "gpt_neox"])
def test_a_clean_port_with_fused_ops_passes(family: str) -> None:
    found = run(family, ops="triton", tokens=140)
    assert {*statuses(found).values()} == {"PASS"}, found


def test_an_error_that_one_forward_pass_has_too_is_no_matter_of_paths() -> None:
    found = statuses(run("gemma3", "block.mlp.act=gelu", "norm.eps=1e-5"))
    assert found.pop("logits") == "FAIL" and {*found.values()} == {"PASS"}, found


def test_the_records_say_what_was_compared() -> None:
    found = {check.name: check for check in run("mistral")}
    assert found["decode"].detail.startswith("29 of 200 tokens at once, then 3 one at a time: ")
    assert found["chunks"].detail.startswith("32 of 200 tokens in chunks of 15, 6, 11: ")
    assert found["window"].detail.startswith("126 of 200 tokens at once, 7 past the window of 128, 3 one at a time, ")
    assert found["padding.left"].detail.startswith("two rows, one with 17 of 32 padded on the left, the last 3 decoded")
    assert found["padding.right"].detail.startswith("two rows, one with 17 of 32 padded on the right: ")
    assert found["batch"].detail.startswith("two rows of 15 tokens, against each alone: ")
    assert found["packed"].detail.startswith("documents of 15 and 15 tokens in one row, against each alone: ")
    assert found["decode"].where.startswith("layers.") and ", token " in found["decode"].where
    assert found["logits"].detail.startswith("KL(reference‖port) 0, 0 × KL(golden‖reference); none of 32 tokens")
    assert {check.dtype for check in found.values()} == {"float32"}
    assert found["packed"].limit == BEHAVIOUR["float32"]["route"][0]
    assert found["logits"].limit == BEHAVIOUR["float32"]["kl"][0]


def test_a_window_that_the_prompt_does_not_pass_is_said() -> None:
    found = {check.name: check for check in run("mistral", tokens=100)}
    assert found["window"].status == "NOT_COMPARED"
    assert found["window"].detail == "100 tokens do not pass the window of 128; pass --tokens 136 or more"
    assert "window" not in {check.name for check in run("llama", tokens=100)}


def test_a_prompt_of_a_few_words_is_not_compared() -> None:
    assert statuses(run("llama", tokens=LEAST_TOKENS - 1, greedy=True)) == {"decode": "NOT_COMPARED"}
    assert statuses(run("llama", tokens=LEAST_TOKENS, greedy=True)) == dict.fromkeys(ROUTES, "PASS")


@pytest.mark.parametrize("tokens", [LEAST_TOKENS, 13, 30, 48, 200])
def test_routes_feed_every_token_once_and_compare_real_ones(tokens: int) -> None:
    build = tiny("gemma3")
    routes = {route.name: route for route in plan_routes(build.blueprint, random_ids(build, tokens)[0].tolist())}
    assert ("window" in routes) == (tokens == 200)
    for route in routes.values():
        assert sum(route.calls) == route.ids_BS.shape[1]
        assert [slot for span in route.spans() for slot in range(span.start, span.stop)] == [*range(sum(route.calls))]
        for piece in route.pieces:
            base = routes[piece.base]
            assert torch.equal(route.ids_BS[piece.row, piece.slots], base.ids_BS[0, piece.base_slots])
            if route.documents_BS is not None:
                assert (route.documents_BS[piece.row, piece.slots] != PADDING).all()
    assert len(set(routes["chunks"].calls)) == 3 or tokens < 30
    assert min(*routes["chunks"].calls, *routes["packed"].calls) >= 2 and len(routes["decode"].calls) == 4


def test_the_worst_token_is_relative_and_infinite_where_the_value_alone_is() -> None:
    truth_SF = torch.tensor([[3.0, 4.0], [30.0, 40.0], [1.0, 0.0]])
    value_SF = truth_SF + torch.tensor([[0.0, 1.0], [0.0, 5.0], [0.0, 0.0]])
    assert worst_token(value_SF, truth_SF) == (pytest.approx(0.2), 0)
    value_SF[2, 1] = NAN
    assert worst_token(value_SF, truth_SF) == (INF, 2)
    truth_SF[2, 1] = NAN
    assert worst_token(value_SF, truth_SF) == (pytest.approx(0.2), 0)  # the reference's overflow is no fault


ROUTE = Route("decode", torch.zeros(1, 48, dtype=torch.long), (45, 1, 1, 1))


def reading(node: str = "resid_post", layer: int = 0, **given) -> Reading:
    values = {"check": "decode", "route": "decode", "node": f"layers.{layer}.{node}", "row": 0, "slot": 46,
              "apart": 1.0, "across": 0.5, "error": 1e-3, "reference_apart": 1.0, "decidable": True}  # fmt: skip
    return Reading(**(values | given))


def judged(*readings: Reading, dtype: str = "bfloat16") -> Behaviour:
    return next(check for check in judge_routes(dtype, [ROUTE], readings, 640) if check.name == "decode")


@pytest.mark.parametrize("side", ["apart", "across"])
@pytest.mark.parametrize("dtype", BEHAVIOUR)
def test_a_route_passes_up_to_the_first_limit_and_fails_past_the_second(dtype: str, side: str) -> None:
    good, bad = BEHAVIOUR[dtype]["route"]
    found = [
        judged(reading(**{side: value}), dtype=dtype).status
        for value in (good, math.nextafter(good, 99), bad, math.nextafter(bad, 99), INF)
    ]
    assert found == ["PASS", "WARN", "WARN", "FAIL", "FAIL"]


def test_keys_and_values_alone_only_warn() -> None:
    found = judged(reading("keys", apart=99.0))
    assert (found.status, found.measured) == ("WARN", 99.0) and found.detail.endswith("explains; the outputs agree")
    assert judged(reading("values", apart=99.0), reading(layer=2, apart=99.0)).where == "layers.2.resid_post, token 46"


def test_the_first_failing_layer_is_named() -> None:
    found = judged(reading(), reading(layer=1, apart=50.0), reading(layer=2, across=99.0))
    assert (found.status, found.measured, found.where) == ("FAIL", 50.0, "layers.1.resid_post, token 46")
    assert found.detail.endswith("0.001 from one forward pass, 50 × what rounding explains")
    assert "from the reference fed alike" in judged(reading(across=50.0)).detail


def test_a_reference_that_rounds_too_much_decides_nothing() -> None:
    assert judged(reading(apart=99.0, decidable=False)).status == "INCONCLUSIVE"
    assert judged(reading(apart=99.0, decidable=False), reading()).status == "PASS"


def logits(kl: float = 1e-3, kl_ref: float = 1e-3, *at: LogitsAt, dtype: str = "bfloat16") -> Logits:
    return Logits("precision", dtype, kl, kl_ref, kl, 7, 0.0, 1.0, tokens=max(len(at), 1), at=at)


def at(margin: float = 8.0, flipped: bool = False, fifth: float = 1.0, port_fifth: int = 5) -> LogitsAt:
    reference = ((1, 10.0), (2, 10.0 - margin), (3, 1.9), (4, 1.5), (5, fifth))
    port = ((2, 10.0), (1, 9.0), *reference[2:]) if flipped else reference
    return LogitsAt(3, 0.1, margin, 1.0, reference, (*port[:4], (port_fifth, 1.0)))


def test_logits_are_judged_by_kl_over_the_reference_s_own() -> None:
    good, bad = BEHAVIOUR["bfloat16"]["kl"]
    for ratio, wanted in ((good * 0.99, "PASS"), (good * 1.01, "WARN"), (bad * 0.99, "WARN"), (bad * 1.01, "FAIL")):
        assert judge_logits(logits(ratio * 1e-3)).status == wanted
    assert judge_logits(logits(NAN)).status == "FAIL"
    for own in (NAN, INF):  # the real Gemma in float16: HuggingFace itself overflows
        assert judge_logits(logits(NAN, own)).status == "INCONCLUSIVE"
    assert judge_logits(logits(1e-13, 0.0, dtype="float32")).status == "PASS"


def test_a_word_that_rounding_cannot_flip_fails() -> None:
    assert (
        judge_logits(logits(0.0, 1e-3, at(4.0, flipped=True))).status == "PASS"
    )  # a margin of four floors is not safe
    found = judge_logits(logits(0.0, 1e-3, at(), at(4.1, flipped=True)))
    assert (found.status, found.where) == ("FAIL", "token 3") and "1 of 2 tokens" in found.detail


def test_a_word_that_leaves_the_first_five_fails_where_rounding_cannot_take_it_out() -> None:
    near, far = at(port_fifth=9), replace(at(), port=((8, 10.0), (9, 9.9), (2, 9.8), (3, 9.7), (4, 9.6)), margin=1.0)
    assert judge_logits(logits(0.0, 1e-3, near)).status == "PASS"
    assert judge_logits(logits(0.0, 1e-3, far)).status == "FAIL"


def greedy(margins: list[float], rounding: float = 0.1) -> Behaviour:
    """A reference that prefers another word than the port's by these margins; golden is `rounding` off everywhere."""
    text_1S, vocab = torch.arange(20 + WORDS)[None], 64
    reference_NV = torch.zeros(WORDS, vocab)
    for row, margin in enumerate(margins):
        reference_NV[row, 20 + row] = 5.0
        reference_NV[row, 3] = 5.0 + margin
    return judge_greedy("bfloat16", text_1S, reference_NV, lambda step: reference_NV[step].double() + rounding)


def test_text_agrees_up_to_a_tie_and_no_further() -> None:
    assert greedy([-1.0] * WORDS).status == "PASS" and greedy([-1.0] * WORDS).where == ""
    floor = math.sqrt(2) * 0.1
    tie = greedy([-1.0] * 4 + [3.9 * floor] + [50.0] * 11)
    assert (tie.status, tie.where) == ("PASS", "word 5") and tie.measured == pytest.approx(3.9, rel=1e-3)
    assert "4 agree" in tie.detail and tie.detail.endswith("a tie, and the rest is not compared")
    fail = greedy([-1.0] * 4 + [4.1 * floor] + [-1.0] * 11)
    assert (fail.status, fail.where) == ("FAIL", "word 5") and "chooses #3 and not #24" in fail.detail
    assert greedy([-1.0] * 15 + [1e-3], rounding=0.0).status == "FAIL"
    assert greedy([0.0] * WORDS, rounding=0.0).status == "PASS"  # bfloat16 knows exact ties
    assert greedy([NAN] * WORDS).status == "INCONCLUSIVE"


def test_a_large_model_and_one_without_room_write_nothing(monkeypatch) -> None:
    monkeypatch.setattr(stage, "MOST_PARAMETERS", 1000)
    found = {check.name: check for check in run("llama", greedy=True)}
    assert (
        found["greedy"].status == "NOT_COMPARED" and "are more than the 1,000 that are held" in found["greedy"].detail
    )
    monkeypatch.undo()
    monkeypatch.setattr(stage, "WORDS", 1020)
    found = {check.name: check for check in run("gpt2", greedy=True)}
    assert found["greedy"].detail == "a position table of 1024 holds no 12 tokens and 1020 words"


def test_a_large_model_is_decoded_through_all_layers_and_one_of_each_kind_takes_the_other_routes(monkeypatch) -> None:
    monkeypatch.setattr(routes, "LARGE", 1000)
    for family, layers, said in (("gemma2", 2, "2 layers, one of each kind"), ("llama", 1, "one layer, of their only")):
        build = tiny(family)
        plan = {route.name: route.layers for route in plan_routes(build.blueprint, range(200))}
        assert plan.pop("whole") is plan.pop("decode") is None and {*plan.values()} == {layers}
        found = {check.name: check for check in run(family)}
        assert {check.status for check in found.values()} == {"PASS"}
        assert f", through {said}" in found["packed"].detail and "through" not in found["decode"].detail


def check(status: str, name: str = "decode", measured: float = 1.0) -> Behaviour:
    return Behaviour(name, "float32", status, measured, 4.0, f"detail of {name}", "")


def test_several_prompts_keep_the_worst_record_of_a_check() -> None:
    found = worst_first(
        [check("PASS"), check("WARN", measured=5.0), check("PASS", "chunks"), check("PASS", measured=2.0)]
    )
    assert [(each.name, each.status, each.measured) for each in found] == [
        ("decode", "WARN", 5.0),
        ("chunks", "PASS", 1.0),
    ]


def test_the_stage_is_its_worst_check() -> None:
    passed, warned, failed = check("PASS"), check("WARN", "padding.left"), check("FAIL", "packed")
    missing, open_ = check("NOT_COMPARED", "greedy"), check("INCONCLUSIVE", "chunks")
    found = summarize_behaviour("float32", [passed, missing, warned])
    assert (found.name, found.status, found.compared, found.first) == ("behaviour", "WARN", 2, "padding.left")
    assert summarize_behaviour("float32", [passed, open_, failed]).first == "packed"
    assert summarize_behaviour("float32", [passed, open_, warned]).status == "INCONCLUSIVE"
    assert summarize_behaviour("float32", [passed, missing]).detail == "as in one forward pass: decode"
    assert summarize_behaviour("float32", [missing]).status == "NOT_COMPARED"


def test_every_dtype_with_a_floor_has_limits() -> None:
    assert BEHAVIOUR.keys() == FLOORS.keys()
    assert all(good < bad for limits in BEHAVIOUR.values() for good, bad in limits.values())


def test_the_stage_runs_alone_and_judges_its_own_logits() -> None:
    report = diff(tiny("llama", dtype="bfloat16", tokens=40), stages=["behaviour"])
    assert [(stage.name, stage.dtype, stage.status) for stage in report.stages] == [
        ("behaviour", "float32", "PASS"), ("behaviour", "bfloat16", "PASS"),
    ]  # fmt: skip
    assert (report.verdict, report.exit_code, report.nodes) == ("PASS", 0, ())
    assert report.sentence == "PASS: 12 checks of behaviour agree with the reference in float32 and bfloat16."
    assert all("of 32 tokens" in check.detail for check in report.behaviour if check.name == "logits")


def test_a_list_of_layers_and_the_first_bad_one_ask_for_no_other_paths() -> None:
    assert diff(tiny("llama", tokens=20), layers="0").behaviour == ()
    assert diff(tiny("llama", tokens=20), layers="first-bad").behaviour == ()
    with pytest.raises(UsageError, match="behaviour"):
        diff(tiny("llama", tokens=20), stages=["behavior"])


def test_a_diff_fails_where_a_path_does(monkeypatch) -> None:
    plant(monkeypatch, FAULTS["documents of a row attend to each other"])
    report = diff(tiny("qwen3", tokens=40))
    assert (report.verdict, report.exit_code, report.first_fail) == ("FAIL", 1, None)
    assert report.sentence.startswith("FAIL at packed (behaviour, float32): documents of 15 and 15 tokens in one row")
    assert report.sentence.endswith("; next: porter diff qwen3-tiny --stage behaviour")
