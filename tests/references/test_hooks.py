"""Hooks from the weight rules show every node that the port declares, in its shape, for every family."""

import pytest
import torch

from porter.comparison.lanes import PortLane
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import make_ops
from porter.references.hf import HfReference
from porter.references.hooks import _heads
from tests.models.tiny import FAMILIES, random_ids, tiny

CPU = torch.device("cpu")


def lanes(family: str, dtype: torch.dtype):
    build = tiny(family)
    loader = Streamed(build.blueprint, make_ops("reference"), build.reader(), dtype, CPU)
    port = PortLane(Decoder(build.blueprint, loader), dtype, CPU)
    return build, HfReference(build.blueprint, build.checkpoint(), dtype, CPU), port


NORMS_AND_CLIPS = ["apertus", "bitnet", "cohere", "exaone", "nanochat", "olmo", "olmo3"]  # where HF does it otherwise
BOTH = [
    *((family, torch.float32) for family in (*FAMILIES, *NORMS_AND_CLIPS)),
    ("gemma3", torch.bfloat16),
    ("phi3", torch.bfloat16),
]


@pytest.mark.parametrize(("family", "dtype"), BOTH, ids=str)
def test_every_declared_node_is_shown_and_is_bit_equal(family: str, dtype: torch.dtype) -> None:
    build, reference, port = lanes(family, dtype)
    ids_BT = random_ids(build, 17)
    for lane in (reference, port):
        lane.start(ids_BT)
    x_BTD = reference.embed()["embed.out"]
    assert_alike(reference.embed(), port.embed())
    for i in range(build.blueprint.dims.layers):
        theirs, own = reference.layer(i, x_BTD), port.layer(i, x_BTD)
        assert_alike(theirs, own)
        assert {"attn.ctx", "attn.out", "attn.q_rope", "mlp.act", "mlp.out", "resid_post"} <= own.keys()
        x_BTD = theirs["resid_post"]
    assert_alike(reference.head(x_BTD), port.head(x_BTD))
    assert own.keys() >= ({"attn.q_norm", "attn.k_norm"} if family in {"gemma3", "qwen3"} else set())


def assert_alike(theirs: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> None:
    assert own.keys() == theirs.keys()
    for name, value in own.items():
        assert value.shape == theirs[name].shape and value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name


def test_norms_of_heads_come_out_as_tokens_by_heads() -> None:
    blueprint = tiny("gemma3").blueprint  # 4 query heads, 2 key heads, of 32
    split = _heads("attn.k_norm", blueprint)
    x_BTGK = torch.arange(3 * 2 * 32.0).view(1, 3, 2, 32)
    for value in (x_BTGK, x_BTGK.transpose(1, 2), x_BTGK.flatten(2)):
        assert torch.equal(split(value)["attn.k_norm"], x_BTGK)
    assert split(torch.zeros(1, 2, 2, 32)) == {}  # two tokens, two heads: the layouts look alike
