"""The decoder against HF: ordinary forward passes bit for bit, decoding through the cache, greedy generation."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from porter.errors import UsageError
from porter.models.decoder import Decoder, Resident, Streamed, check_length, prefixed
from porter.models.layers import no_tap
from porter.models.ops import make_ops
from porter.models.positions import Cache
from porter.weights import reader
from tests.models.tiny import FAMILIES, random_ids, tiny

CPU = torch.device("cpu")
WINDOW = 128  # of the tiny sizes that have one


def hf_model(folder: Path, dtype: torch.dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def hf_states(folder: Path, dtype: torch.dtype, ids_BT: Tensor) -> dict[str, Tensor]:
    """HF's ordinary forward pass: embedding, every layer's output, the final norm's, the logits."""
    model, last = hf_model(folder, dtype), []
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)
    layers[-1].register_forward_hook(lambda _m, _a, out: last.append(out[0] if isinstance(out, tuple) else out))
    out = model(input_ids=ids_BT, output_hidden_states=True, use_cache=False)
    states = {"embed.out": out.hidden_states[0], "final.norm": out.hidden_states[-1], "logits": out.logits}
    for i, value in enumerate([*out.hidden_states[1:-1], last[0]]):
        states[f"layers.{i}.resid_post"] = value
    return states


@torch.no_grad()
def taps(model: Decoder, ids_BT: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    model(ids_BT, tap=found.__setitem__)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_and_the_logits_have_the_bits_of_hf(family: str, dtype: str) -> None:
    build = tiny(family)  # stored in float32, so that bfloat16 rounds
    ids_BT = random_ids(build, 320)
    theirs = hf_states(build.checkpoint(), getattr(torch, dtype), ids_BT)
    own = taps(build.model(dtype), ids_BT)
    assert len(theirs) == build.blueprint.dims.layers + 3
    for name, value in theirs.items():
        assert own[name].dtype == value.dtype and torch.equal(own[name], value), name


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_a_batch_has_the_bits_of_hf(family: str) -> None:
    build = tiny(family)
    ids_BT, theirs = random_ids(build, 9, batch=3), hf_model(build.checkpoint(), torch.float32)
    with torch.no_grad():
        assert torch.equal(build.model()(ids_BT), theirs(ids_BT, use_cache=False).logits)


@torch.no_grad()
def decode(model: Decoder, ids_BT: Tensor, chunks: list[int]) -> Tensor:
    """Logits of all tokens, a chunk at a time through the cache."""
    cache = Cache(model.blueprint.dims.layers)
    parts = [model(part, cache) for part in ids_BT.split(chunks, dim=1)]
    assert cache.length == ids_BT.shape[1]
    return torch.cat(parts, dim=1)


def rel_l2(value: Tensor, truth: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.double() - truth) / torch.linalg.vector_norm(truth))


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_through_the_cache_is_prefill(family: str) -> None:
    check_decoding(family, [6, 1, 1, 4])


@pytest.mark.parametrize("chunks", [[7, 5], [1, 1, 1, 9]], ids=str)
def test_decoding_may_start_with_one_token_or_take_a_chunk(chunks: list[int]) -> None:
    check_decoding("llama", chunks)


@pytest.mark.parametrize("family", ["gemma3", "mistral", "qwen2"])
def test_decoding_crosses_the_window(family: str) -> None:
    assert any(block.attn.window == WINDOW for block in tiny(family).blueprint.blocks)
    check_decoding(family, [WINDOW - 4, 3, *[1] * 4, 9])


def check_decoding(family: str, chunks: list[int]) -> None:
    """In float64 nearly the same numbers; in float32 as far from float64 as prefill is, times 4 (ρ of semantics)."""
    build = tiny(family)
    ids_BT = random_ids(build, sum(chunks), batch=2)
    wide = build.model("float64")
    with torch.no_grad():
        truth = wide(ids_BT)
        prefill_error = rel_l2(build.model()(ids_BT), truth)
    assert rel_l2(decode(wide, ids_BT, chunks), truth) < 1e-13
    assert rel_l2(decode(build.model(), ids_BT, chunks), truth) <= 4 * prefill_error


KINDS = ["gpt2", "llama", "gemma2", "gemma3", "gpt_neox"]  # learned positions, GQA, softcaps, windows, partial RoPE


@torch.no_grad()
def check_rows(family: str, rows: list[list[int]], lengths: list[int]) -> None:
    """Each document of the rows, in float64, as if it were alone; the last two tokens of a row through the cache.

    Args:
        rows: the document of each slot, -1 for padding.
        lengths: tokens of the documents, as they first come in the rows.
    """
    build = tiny(family)
    model, documents_BS = build.model("float64"), torch.tensor(rows)
    texts = [random_ids(build, 200, batch=2)[i % 2, i : i + n] for i, n in enumerate(lengths)]
    ids_BS, places = torch.zeros_like(documents_BS), []
    for row, documents in enumerate(documents_BS):
        for document in sorted({*documents.tolist()} - {-1}):
            places.append((row, (documents == document).nonzero().flatten()))
            ids_BS[row, places[-1][1]] = texts[len(places) - 1]
    start, cache = documents_BS.shape[1] - 2, Cache(build.blueprint.dims.layers)
    parts = [model(ids_BS[:, :start], cache, documents_BS=documents_BS[:, :start])]
    parts += [model(ids_BS[:, i : i + 1], cache, documents_BS=documents_BS[:, : i + 1]) for i in (start, start + 1)]
    found = torch.cat(parts, 1)
    for (row, slots), text in zip(places, texts, strict=True):
        assert rel_l2(found[row, slots], model(text[None])[0]) < 1e-13


@pytest.mark.parametrize("family", KINDS)
def test_rows_padded_on_the_left_are_the_rows_without(family: str) -> None:
    check_rows(family, [[0] * 140, [-1] * 5 + [0] * 135], [140, 135])  # past the windows of 128


@pytest.mark.parametrize("family", KINDS)
def test_rows_padded_on_the_right_may_be_decoded(family: str) -> None:
    check_rows(family, [[0] * 12, [0] * 5 + [-1] * 5 + [0] * 2], [12, 7])


@pytest.mark.parametrize("family", KINDS)
def test_packed_documents_do_not_see_each_other(family: str) -> None:
    check_rows(family, [[0] * 7 + [1] * 135], [7, 135])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_generate_is_hf_greedy(family: str) -> None:
    build, num_tokens = tiny(family), 12
    ids_BT = random_ids(build, WINDOW - 6, batch=2)  # gemma3 decodes past its window
    model = hf_model(build.checkpoint(), torch.float32)
    model.generation_config.eos_token_id = None  # porter's generate knows no end of text
    theirs = model.generate(
        ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
    )
    own = build.model().generate(ids_BT, num_tokens)
    assert own.shape == (2, WINDOW - 6 + num_tokens)
    assert own.tolist() == theirs.tolist()


def test_generate_takes_each_token_from_the_whole_text_so_far() -> None:
    build = tiny("qwen3")
    model, ids_BT = build.model(), random_ids(build, 5)
    found = model.generate(ids_BT, 4)
    with torch.no_grad():
        assert found[:, 5:].tolist() == model(found)[:, 4:-1].argmax(-1).tolist()


@pytest.mark.parametrize("family", ["gemma", "gpt2", "gpt_neox"])
def test_streamed_units_compute_what_resident_ones_do(family: str) -> None:
    build = tiny(family)
    parts = (build.blueprint, make_ops("reference"), build.reader(), torch.float32, CPU)
    streamed = Streamed(*parts)
    ids_BT = random_ids(build, 6)
    with torch.no_grad():
        assert torch.equal(
            Decoder(build.blueprint, streamed)(ids_BT), Decoder(build.blueprint, Resident(*parts))(ids_BT)
        )
    assert streamed.layer(1) is streamed.layer(1)  # the unit in memory is not read again
    assert streamed.layer(0) is not streamed.layer(1)
    held = streamed.layer(0)
    streamed.release()
    assert streamed.layer(0) is not held


@pytest.mark.parametrize("family", ["gemma", "llama"])  # tied, and not
def test_a_head_in_chunks_gives_every_logit(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_CHUNK_ELEMENTS", 96 * 200)
    build = tiny(family)
    streamed = Streamed(build.blueprint, make_ops("reference"), build.reader(), torch.float64, CPU)
    ids_BT = random_ids(build, 6)
    with torch.no_grad():
        logits_BTV = Decoder(build.blueprint, streamed)(ids_BT)
        assert len(list(streamed.head().head.chunks())) == 3
        assert torch.allclose(logits_BTV, build.model("float64")(ids_BT), rtol=1e-13, atol=1e-13)


def test_parameters_of_a_resident_model_are_the_checkpoints_and_a_tied_head_is_one_tensor() -> None:
    build = tiny("gemma")
    model = build.model()
    assert sum(each.numel() for each in model.parameters()) == build.blueprint.num_parameters
    assert model.loader.head().head.weight is model.loader.embed().embed.weight
    assert not list(Decoder(build.blueprint, Streamed(build.blueprint, make_ops("reference"), build.reader(),
                                                      torch.float32, CPU)).parameters())  # fmt: skip


def test_one_gradient_reaches_every_parameter() -> None:
    build = tiny("llama")
    model = build.model()
    model(random_ids(build, 8)).square().mean().backward()
    assert [name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()] == []


def test_more_tokens_than_a_learned_table_are_refused() -> None:
    gpt2, llama = tiny("gpt2").blueprint, tiny("llama").blueprint
    check_length(gpt2, 1024)
    check_length(llama, 10_000)
    with pytest.raises(UsageError, match=r"1025 tokens are more than the position table of gpt2 holds\n.*at most 1024"):
        check_length(gpt2, 1025)


def test_a_cache_that_fills_the_table_refuses_the_next_token() -> None:
    build = tiny("gpt2")
    model, cache = build.model(), Cache(3)
    ids_BT = random_ids(build, 1024)
    with torch.no_grad():
        model(ids_BT, cache)
        with pytest.raises(UsageError, match="1025 tokens"):
            model(ids_BT[:, :1], cache)


def test_taps_of_a_layer_carry_its_number() -> None:
    found: list[str] = []
    prefixed(lambda name, value: found.append(name), 3)("attn.ctx", torch.empty(0))
    assert found == ["layers.3.attn.ctx"]
    assert prefixed(no_tap, 3) is no_tap
