"""The choice of chunks; that it is kept to; that it shows in memory and not in the result."""

import pytest
import torch

from porter_kernels.accuracy import excess
from porter_kernels.linear_cross_entropy import Chunks, choose_chunks, linear_cross_entropy
from porter_kernels.linear_cross_entropy.chunks import MIN_ROWS, row_stride
from porter_kernels.linear_cross_entropy.gradients import Need
from porter_kernels.linear_cross_entropy.passes import cut_rows, kept_rows, walk
from porter_kernels.linear_cross_entropy.problem import Problem, state_problem
from tests.porter_kernels.linear_cross_entropy_budget import (
    DEVICE,
    Case,
    assert_within_budget,
    draw,
    run_case,
    run_in_float64,
)

LLAMA = {"hidden_size": 4096, "vocab_size": 128256, "element_size": 2}
MIB, GIB = 2**20, 2**30


def choose(num_rows: int, **options: object) -> Chunks:
    return choose_chunks(num_rows, **LLAMA | options)  # type: ignore[arg-type]


def peak(logits_rows: int, head_bytes: int, num_rows: int, d_hidden: bool = True) -> int:
    """Bytes of that many rows of logits, of so many bytes an element of the head, and of d_hidden."""
    return logits_rows * 128256 * 2 + head_bytes * 128256 * 4096 + d_hidden * num_rows * 4096 * 2


@pytest.mark.parametrize("num_rows", [1, 100, 2048, 4096, 8192])
def test_up_to_two_rows_a_feature_one_chunk_is_smallest(num_rows: int) -> None:
    assert choose(num_rows) == Chunks(num_rows, 1, peak(num_rows, 2, num_rows))


@pytest.mark.parametrize(("num_rows", "rows", "count"), [(16384, 4096, 4), (8193, 2816, 3), (65536, 4096, 16)])
def test_beyond_them_an_accumulator_is_smaller(num_rows: int, rows: int, count: int) -> None:
    # The accumulator beside d_weight hides logits of as many rows as there are features: larger chunks are free.
    assert choose(num_rows) == Chunks(rows, count, peak(0, 6, num_rows))


@pytest.mark.parametrize(
    ("options", "head_bytes"), [({"accumulate": "weight"}, 2), ({"weight_gradient": False}, 0)], ids=str
)
def test_without_an_accumulator_chunks_are_the_smallest_that_feed_the_gpu(
    options: dict[str, object], head_bytes: int
) -> None:
    assert choose(8192, **options) == Chunks(2048, 4, peak(2048, head_bytes, 8192))
    assert choose(10000, **options) == Chunks(2560, 4, peak(2560, head_bytes, 10000))  # not 2048 and a few more
    assert choose(8190, **options) == Chunks(2048, 4, peak(2048, head_bytes, 8190))  # as good as 8192


def stated(case: Case, **only: object) -> Problem:
    options: dict[str, object] = {
        "bias": None, "class_weight": None, "token_weight": None, "ignore_index": -100, "reduction": "mean",
        "label_smoothing": 0.0, "z_loss": 0.0, "softcap": None, "logit_scale": 1.0, "num_items": None, "stats": False,
        "chunk_rows": None, "byte_budget": None, "accumulate": "float32", "drop_ignored": False, "shift": False,
    }  # fmt: skip
    return state_problem("op", case.hidden, case.weight, case.target, **options | only)  # type: ignore[arg-type]


def test_a_frozen_head_is_cut_as_one_without_an_accumulator() -> None:
    row = torch.zeros(1, 4096, dtype=torch.bfloat16)
    problem = stated(Case(row.expand(8192, -1), row, torch.zeros(8192, dtype=torch.int64)))
    trained, frozen = (cut_rows(problem, Need(True, needed, False), 128256)[0] for needed in (True, False))
    assert (trained, frozen) == (choose(8192), choose(8192, weight_gradient=False)) and trained != frozen


def test_rows_whose_weight_is_zero_are_left_out_with_the_ignored(generator: torch.Generator) -> None:
    case = draw(generator, N=5)
    case.target[:] = torch.tensor([1, -100, 2, 3, 1])
    weights = torch.tensor([1.0, 1.0, 0.0, 0.5, 2.0], device=DEVICE)
    for token_weight, kept in ((None, [0, 2, 3, 4]), (weights, [0, 3, 4])):
        found = kept_rows(stated(case, token_weight=token_weight, drop_ignored=True), 11)
        assert found is not None and found.tolist() == kept


def test_a_gradient_of_four_bytes_is_its_own_accumulator() -> None:
    chunks = choose_chunks(8192, 4096, 128256, element_size=4)
    assert (chunks.rows, chunks.count) == (2048, 4)
    assert chunks.peak_bytes == (2048 * 128256 + 8192 * 4096 + 4096 * 128256) * 4


def test_a_loss_alone_takes_one_chunk_of_logits() -> None:
    chunks = choose(8192, hidden_gradient=False, weight_gradient=False)
    assert chunks == Chunks(2048, 4, 2048 * 128256 * 2)


@pytest.mark.parametrize("num_rows", [2049, 5000, 6145, 12345])
@pytest.mark.parametrize("accumulate", ["float32", "weight"])
def test_chunks_are_even_and_cover_the_rows(accumulate: str, num_rows: int) -> None:
    chunks = choose(num_rows, accumulate=accumulate)
    last = num_rows - chunks.rows * (chunks.count - 1)
    assert 0 < last <= chunks.rows and chunks.rows - last < 128 * chunks.count
    assert chunks.rows == num_rows or (chunks.rows % 128 == 0 and chunks.rows >= 2048)


def test_a_budget_that_is_met_changes_nothing() -> None:
    for budget in (4 * GIB, choose(8192).peak_bytes):
        assert choose(8192, byte_budget=budget) == choose(8192)


def test_a_budget_makes_the_fewest_chunks_that_fit() -> None:
    free = choose(8192, accumulate="weight")
    for budget in (free.peak_bytes - 1, free.peak_bytes - 200 * MIB, free.peak_bytes - 400 * MIB):
        chunks = choose(8192, accumulate="weight", byte_budget=budget)
        rows_of_fewer = -(-8192 // (chunks.count - 1) // 128) * 128
        fewer = choose(8192, accumulate="weight", chunk_rows=rows_of_fewer)
        assert chunks.peak_bytes <= budget < fewer.peak_bytes
        assert chunks.rows % 128 == 0 and chunks.rows < 2048


def test_a_budget_that_nothing_meets_says_what_would() -> None:
    with pytest.raises(ValueError, match=r"byte_budget is 1000, expected at least (\d+) .*accumulate=") as error:
        choose(8192, accumulate="weight", byte_budget=1000)
    least = int(str(error.value).split("at least ")[1].split()[0])
    assert choose(8192, accumulate="weight", byte_budget=least).peak_bytes == least == peak(128, 2, 8192)


@pytest.mark.parametrize(("chunk_rows", "chunks"), [(3000, (3000, 3)), (10**6, (8192, 1)), (1, (1, 8192))])
def test_rows_that_are_asked_for_are_taken(chunk_rows: int, chunks: tuple[int, int]) -> None:
    chosen = choose(8192, chunk_rows=chunk_rows)
    assert (chosen.rows, chosen.count) == chunks


@pytest.mark.parametrize("options", [{"chunk_rows": 0}, {"chunk_rows": 5, "byte_budget": GIB}], ids=str)
def test_rows_and_budget_are_one_or_the_other(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"chunk_rows is \d with byte_budget .*Pass one of the two"):
        choose(8192, **options)


def test_rows_beyond_all_memory_take_no_time() -> None:
    chunks = choose_chunks(2**33, 4096, 128256, element_size=2)
    assert chunks.rows * chunks.count >= 2**33 and chunks.rows >= MIN_ROWS


def test_no_rows_make_no_chunks() -> None:
    assert choose(0).count == 0


@pytest.mark.parametrize(("largest_slice", "chunks"), [(None, [256]), (10, [256]), (64, [128, 128])])
def test_slices_of_a_vocabulary_are_walked_in_the_chunks_of_the_largest(
    largest_slice: int | None, chunks: list[int], generator: torch.Generator
) -> None:
    case = draw(generator, N=256, H=1, V=10, ignored=0.0, bias=False)
    problem = state_problem(
        "op", case.hidden, case.weight, case.target, bias=None, class_weight=None, token_weight=None, ignore_index=-100,
        reduction="mean", label_smoothing=0.0, z_loss=0.0, softcap=None, logit_scale=1.0, num_items=None, stats=False,
        chunk_rows=None, byte_budget=50_000, accumulate="float32", drop_ignored=None, shift=False,
    )  # fmt: skip
    walked = []
    walk(problem, problem.need, lambda logits_CV, at: walked.append(logits_CV.shape[0]), largest_slice=largest_slice)
    assert walked == chunks


@pytest.mark.parametrize(("V", "size", "stride"), [(128256, 2, 128256), (50257, 2, 50304), (5, 4, 32), (64, 2, 64)])
def test_rows_of_logits_start_at_lines(V: int, size: int, stride: int) -> None:
    assert row_stride(V, size) == stride


def test_weights_error_does_not_grow_with_chunks(generator: torch.Generator) -> None:
    """Logits of 0 over 8 classes have gradients of 1/8 and -7/8, exact in bfloat16: only the sum of rows rounds.

    Every row pulls one class the same way, to 84: a bfloat16 sum of 16 chunks rounds to steps of 0.5 again and again.
    """
    N, H, V = 64, 6, 8
    hidden = (1 + torch.rand(N, H, generator=generator)).bfloat16().to(DEVICE)
    case = Case(hidden, hidden.new_zeros(V, H), torch.full((N,), 3, device=DEVICE), None, {"reduction": "sum"})
    truth = run_in_float64(case)["weight"]
    worst = {}
    for rows, accumulate in ((N, "float32"), (4, "float32"), (4, "weight")):
        d_weight = run_case(linear_cross_entropy, case.walked(chunk_rows=rows, accumulate=accumulate))["weight"]
        worst[rows, accumulate] = excess(d_weight, truth, N, hidden.abs().max().double())
    assert max(worst[N, "float32"], worst[4, "float32"]) <= 1
    assert worst[4, "weight"] > 1


@pytest.mark.parametrize("accumulate", ["float32", "weight"])
def test_loss_does_not_depend_on_chunks(accumulate: str, generator: torch.Generator) -> None:
    case = draw(generator, N=18, dtype=torch.bfloat16).walked(accumulate=accumulate)
    for rows in (5, 9):
        assert_within_budget(run_case(linear_cross_entropy, case.walked(chunk_rows=rows)), case, rounds=18)
