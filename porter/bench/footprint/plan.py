"""What is trained, and how: the arguments of a footprint."""

from dataclasses import dataclass
from typing import Literal, get_args

from porter.errors import UsageError, closest
from porter.specs.blueprint import Blueprint

Attention = Literal["sdpa", "eager"]
Loss = Literal["naive", "chunked", "fused", "fused-lean"]
Checkpointing = Literal["none", "plain", "offloaded"]
Optimizer = Literal["adamw", "adamw-foreach", "adamw-float32", "sgd", "none"]
ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}
OFFLOADED_DEPTH = 2  # inputs on the device at a time, as porter.patching.offload has it


@dataclass(frozen=True)
class Plan:
    """A training step.

    Attributes:
        batch: samples.
        tokens: of each sample.
        dtype: of weights, activations and gradients.
        attention: HF's implementation; a softcap is computed eagerly whatever it says, as HF does.
        fused: porter's kernels in the place of HF's norms, rotation and feed-forward activation.
        loss: HF's (naive), chunks that are computed again in backward, or porter's linear_cross_entropy.
        checkpointing: keep only the layers' inputs, on the device or offloaded.
        optimizer: adamw is torch's fused one, states in dtype; adamw-foreach has temporaries; adamw-float32 has
            float32 states and a float32 copy of the weights.
    """

    batch: int
    tokens: int
    dtype: str = "bfloat16"
    attention: Attention = "sdpa"
    fused: bool = False
    loss: Loss = "naive"
    checkpointing: Checkpointing = "none"
    optimizer: Optimizer = "adamw"

    def __post_init__(self) -> None:
        """Raises: UsageError: a value that no step has."""
        for flag, count in (("--batch", self.batch), ("--seq", self.tokens)):
            if count < 1:
                raise UsageError(f"{flag} {count}", "1 or more", "Give the samples of a step, and the tokens of each.")
        kinds: dict[str, tuple[str, tuple[str, ...]]] = {
            "--dtype": (self.dtype, tuple(ELEMENT)),
            "--attention": (self.attention, get_args(Attention)),
            "--loss": (self.loss, get_args(Loss)),
            "--checkpointing": (self.checkpointing, get_args(Checkpointing)),
            "--optimizer": (self.optimizer, get_args(Optimizer)),
        }
        for flag, (value, valid) in kinds.items():
            if value not in valid:
                raise UsageError(f"{flag} {value!r}", closest(value, valid), f"Any of {', '.join(valid)}.")

    @property
    def element(self) -> int:
        """Bytes of a number in `dtype`."""
        return ELEMENT[self.dtype]

    @property
    def rows(self) -> int:
        """Tokens of the whole step."""
        return self.batch * self.tokens


def check_countable(blueprint: Blueprint) -> None:
    """Refuses models whose operations are not on any tape.

    Raises: UsageError: naming the axis.
    """
    for i, block in enumerate(blueprint.blocks):
        unknown = (
            ("moe", block.moe is not None),
            ("mixer", block.mixer is not None),
            ("alibi", block.alibi is not None),
            ("attn.sinks", block.attn.sinks is not None),
            ("attn.scores_dtype fp32", block.attn.scores_dtype == "fp32"),
            ("linear_bias separate", block.linear_bias == "separate"),
            (f"mlp.act {block.mlp.act}", str(block.mlp.act) not in KNOWN_ACTIVATIONS),
        )
        for axis, there in unknown:
            if there:
                raise UsageError(
                    f"{blueprint.family} has {axis} in layer {i}, and what its backward keeps is not known here",
                    "a dense decoder: attention with rotary or learned positions, a feed-forward branch",
                    "Measure it: torch.cuda.max_memory_allocated() after two training steps.",
                )


KNOWN_ACTIVATIONS = {"silu", "gelu", "gelu_tanh", "gelu_new", "gelu_bloom", "quick_gelu", "relu", "relu2"}
