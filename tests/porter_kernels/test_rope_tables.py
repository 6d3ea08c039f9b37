"""rope_frequencies and rope_tables have the bits of transformers, kind by kind and model by model."""

import importlib
import math

import pytest
import torch
from torch import Tensor

from porter_kernels.rope_tables import FREQUENCIES, Rounding, rope_frequencies, rope_tables

SCALINGS = {
    "default": [{}],
    "linear": [{"factor": 3.0}],
    "dynamic": [{"factor": 2.5}],
    "llama3": [
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
    "yarn": [
        {"factor": 4.0, "original_max_position_embeddings": 64},
        {"factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 16, "beta_slow": 2, "truncate": False},
        {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
        {"factor": 0.5, "original_max_position_embeddings": 8192},
    ],
    "longrope": [
        {"original_max_position_embeddings": 64},
        {"original_max_position_embeddings": 64, "factor": 4.0},
        {"original_max_position_embeddings": 64, "attention_factor": 1.19},
        {"original_max_position_embeddings": 512},
    ],
    "proportional": [{}, {"factor": 8.0}],
}
MAX_POSITIONS = 256


def case(kind: str, scaling: dict, dim: int) -> dict:
    if kind == "longrope":
        ramp = torch.linspace(1, 3, dim // 2).tolist()
        return scaling | {"short_factor": ramp, "long_factor": [4 * x for x in ramp]}
    return scaling


def test_every_kind_is_tested() -> None:
    assert SCALINGS.keys() | {"ntk_alpha"} == FREQUENCIES.keys()


def test_frequencies_have_hunyuans_bits() -> None:
    from transformers import HunYuanDenseV1Config
    from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding

    config = HunYuanDenseV1Config(
        head_dim=96, rope_parameters={"rope_type": "dynamic", "rope_theta": 12345.0, "alpha": 1000.0, "factor": 1.0}
    )
    inv_freq, factor = rope_frequencies(
        "ntk_alpha", theta=12345.0, dim=96, scaling={"alpha": 1000.0}, max_positions=MAX_POSITIONS, seq_len=700
    )
    assert torch.equal(inv_freq, HunYuanDenseV1RotaryEmbedding(config).inv_freq) and factor == 1.0


@pytest.mark.parametrize("seq_len", [None, 64, 65, 700, torch.tensor(700)], ids=repr)
@pytest.mark.parametrize("partial", [1.0, 0.25, 0.75])
@pytest.mark.parametrize(
    ("kind", "scaling"),
    [pytest.param(kind, scaling, id=f"{kind} {i}") for kind in SCALINGS for i, scaling in enumerate(SCALINGS[kind])],
)
def test_frequencies_have_huggingfaces_bits(
    kind: str, scaling: dict, partial: float, seq_len: int | Tensor | None
) -> None:
    from transformers import GPTNeoXConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    dim = 128 if kind == "proportional" else int(128 * partial)
    parameters = case(kind, scaling, dim) | {"partial_rotary_factor": partial}
    config = GPTNeoXConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": kind, "rope_theta": 12345.0, **parameters},
    )  # fmt: skip
    compute = ROPE_INIT_FUNCTIONS.get(kind, GPTNeoXRotaryEmbedding.compute_default_rope_parameters)
    their_inv_freq, their_factor = compute(config, seq_len=seq_len)
    inv_freq, attention_factor = rope_frequencies(
        kind, theta=12345.0, dim=dim, scaling=parameters, max_positions=MAX_POSITIONS, seq_len=seq_len
    )
    assert (inv_freq.dtype, inv_freq.shape) == (torch.float32, (dim // 2,))
    assert torch.equal(inv_freq, their_inv_freq)
    assert attention_factor == their_factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("K", [2, 6, 34, 64, 96, 128])
@pytest.mark.parametrize("model", ["llama", "cohere", "olmo2"])
def test_tables_have_the_models_bits(model: str, K: int, dtype: torch.dtype) -> None:
    from transformers import CohereConfig, LlamaConfig, Olmo2Config
    from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RotaryEmbedding

    config, embedding = {
        "llama": (LlamaConfig, LlamaRotaryEmbedding),
        "cohere": (CohereConfig, CohereRotaryEmbedding),
        "olmo2": (Olmo2Config, Olmo2RotaryEmbedding),
    }[model]
    positions = torch.stack([torch.arange(320), torch.arange(1000, 1320)])
    parameters = {"rope_type": "default", "rope_theta": 10000.0}
    module = embedding(config(hidden_size=2 * K, num_attention_heads=2, rope_parameters=parameters))
    theirs = module(torch.zeros((), dtype=dtype), positions)
    inv_freq, factor = rope_frequencies("default", theta=10000.0, dim=K, scaling={}, max_positions=2048)
    mine = rope_tables(
        inv_freq, positions, attention_factor=factor, inv_freq_dtype="fp32", pos_dtype="fp32",
        table_dtype="fp32" if model == "olmo2" else "act", act_dtype=dtype,
    )  # fmt: skip
    for table, their_table in zip(mine, theirs, strict=True):
        duplicated = table.repeat_interleave(2, -1) if model == "cohere" else torch.cat((table, table), -1)
        assert duplicated.dtype == their_table.dtype
        assert torch.equal(duplicated, their_table)


@pytest.mark.parametrize("length", [40, 90])
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_frequencies_follow_the_sequence_as_the_model_does(kind: str, length: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = case(kind, {"factor": 4.0, "original_max_position_embeddings": 64}, 32)
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **parameters},
    )  # fmt: skip
    positions = torch.arange(length)[None]
    theirs = LlamaRotaryEmbedding(config)(torch.zeros(()), positions)
    inv_freq, factor = rope_frequencies(
        kind, theta=10000.0, dim=32, scaling=parameters, max_positions=64, seq_len=positions.max() + 1
    )
    mine = rope_tables(
        inv_freq, positions, attention_factor=factor, inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="act",
        act_dtype=torch.float32,
    )  # fmt: skip
    for table, their_table in zip(mine, theirs, strict=True):
        assert torch.equal(torch.cat((table, table), -1), their_table)


FAR = torch.tensor([0, 1, 255, 256, 257, 258, 511, 513, 8191, 8192, 8193, 32767, 100_001, 131_071])
PUBLISHED: dict[str, tuple[str, int, int, dict]] = {  # family, head width, max_position_embeddings, rope_parameters
    "Llama 3.1": ("llama", 128, 131_072, {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }),
    "Llama 3.2": ("llama", 64, 131_072, {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }),
    "Qwen 2.5": ("qwen2", 128, 131_072, {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768,
    }),
    "DeepSeek V3": ("llama", 64, 163_840, {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 40, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    }),
    "gpt-oss": ("gpt_oss", 64, 131_072, {
        "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 4096,
    }),
    "Phi-3 mini": ("phi3", 96, 131_072, {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096,
        "short_factor": [1 + i / 96 for i in range(48)], "long_factor": [1 + 1.3 * i for i in range(48)],
    }),
    "Phi-4 mini": ("phi3", 128, 131_072, {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75, "short_factor": [1.0] * 48, "long_factor": [1 + 1.3 * i for i in range(48)],
    }),
    "DeepSeek Coder": ("llama", 128, 16_384, {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}),
    "Qwen 3": ("qwen3", 128, 40_960, {"rope_type": "default", "rope_theta": 1e6}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", PUBLISHED)
def test_published_models_have_their_bits_at_far_positions(model: str, dtype: torch.dtype) -> None:
    family, head_dim, max_positions, parameters = PUBLISHED[model]
    module = importlib.import_module(f"transformers.models.{family}")
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3", "gpt_oss": "GptOss"}[family]
    config = getattr(module, f"{name}Config")(
        hidden_size=2 * head_dim, num_attention_heads=2, num_key_value_heads=2, head_dim=head_dim,
        max_position_embeddings=max_positions, rope_parameters=dict(parameters), pad_token_id=None,
        original_max_position_embeddings=parameters.get("original_max_position_embeddings"),
    )  # fmt: skip
    embedding = getattr(importlib.import_module(f"{module.__name__}.modeling_{family}"), f"{name}RotaryEmbedding")
    theirs = embedding(config)(torch.zeros((), dtype=dtype), FAR[None])
    dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    inv_freq, factor = rope_frequencies(
        parameters["rope_type"], theta=parameters["rope_theta"], dim=dim, scaling=parameters,
        max_positions=max_positions, seq_len=FAR.max() + 1,
    )  # fmt: skip
    mine = rope_tables(
        inv_freq, FAR, attention_factor=factor, inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="act",
        act_dtype=dtype,
    )  # fmt: skip
    for table, their_table in zip(mine, theirs, strict=True):
        assert torch.equal(table if family == "gpt_oss" else torch.cat((table, table), -1), their_table)
    assert len(mine[0][0].unique(dim=0)) == len(FAR)  # no position was rounded to its neighbour


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_with_frequencies_of_their_own(dtype: torch.dtype) -> None:
    from transformers import Gemma3TextConfig
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

    parameters = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    embedding = Gemma3RotaryEmbedding(Gemma3TextConfig(head_dim=256, rope_parameters=parameters))
    for layer_type, layer in parameters.items():
        theirs = embedding(torch.zeros((), dtype=dtype), FAR[None], layer_type)
        inv_freq, factor = rope_frequencies(
            layer["rope_type"], theta=layer["rope_theta"], dim=256, scaling=layer, max_positions=131_072
        )
        mine = rope_tables(
            inv_freq, FAR, attention_factor=factor, inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="act",
            act_dtype=dtype,
        )  # fmt: skip
        for table, their_table in zip(mine, theirs, strict=True):
            assert torch.equal(torch.cat((table, table), -1), their_table)


def angles(position: int, act_dtype: torch.dtype, **rounding: Rounding) -> tuple[Tensor, Tensor]:
    inv_freq = torch.tensor([1.0, 0.1])
    fp32: dict[str, Rounding] = {"inv_freq_dtype": "fp32", "pos_dtype": "fp32", "table_dtype": "fp32"}
    return rope_tables(inv_freq, torch.tensor([position]), attention_factor=1.0, act_dtype=act_dtype, **fp32 | rounding)


def test_positions_in_bfloat16_have_no_257() -> None:
    for rounded, exact in zip(angles(257, torch.bfloat16, pos_dtype="act"), angles(256, torch.bfloat16), strict=True):
        assert torch.equal(rounded, exact)
    assert not torch.equal(angles(257, torch.bfloat16)[0], angles(256, torch.bfloat16)[0])


def test_frequencies_in_bfloat16_are_rounded() -> None:
    cos, _ = angles(100, torch.bfloat16, inv_freq_dtype="act")
    tenth = torch.tensor(0.1).bfloat16().item()
    torch.testing.assert_close(cos[0, 0, 1].item(), math.cos(100 * tenth), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rounding", ["act", "fp32"])
def test_float64_is_float64_throughout(rounding: Rounding) -> None:
    cos, sin = angles(12345, torch.float64, inv_freq_dtype=rounding, pos_dtype=rounding, table_dtype=rounding)
    angle = 12345 * torch.tensor(0.1).double().item()
    assert (cos.dtype, cos[0, 0, 1].item(), sin[0, 0, 1].item()) == (torch.float64, math.cos(angle), math.sin(angle))


@pytest.mark.parametrize(
    ("kind", "scaling", "message"),
    [
        ("ntk", {}, r"kind is 'ntk', expected one of default, linear, dynamic.*Add the kind"),
        (
            "linear",
            {"rope_type": "linear"},
            r"scaling has no 'factor' \(it has \['rope_type'\]\), which kind linear",
        ),
        (
            "longrope",
            {"short_factor": [1.0], "long_factor": [1.0]},
            r"short_factor has 1 numbers, expected 4, half the 8",
        ),
    ],
)
def test_wrong_scaling_says_what_to_do(kind: str, scaling: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rope_frequencies(kind, theta=1e4, dim=8, scaling=scaling, max_positions=64)
