"""The logits of one stage, as a report holds them."""

from dataclasses import dataclass

from porter.comparison.names import StageName

SAFE_MARGIN = 4.0  # floors: past this margin rounding alone does not flip an argmax


@dataclass(frozen=True)
class LogitsAt:
    """The logits after one token, propagated.

    Attributes:
        token: index in the prompt.
        kl: KL(reference‖port) here, in nats.
        margin: the reference's largest logit less its second largest.
        floor: what rounding alone moves such a margin by: √2 · rms(reference − golden) over the vocabulary.
        reference, port: each side's largest logits, largest first, as (id, logit).
    """

    token: int
    kl: float
    margin: float
    floor: float
    reference: tuple[tuple[int, float], ...]
    port: tuple[tuple[int, float], ...]

    @property
    def flipped(self) -> bool:
        """The port would say another word."""
        return self.reference[0][0] != self.port[0][0]

    @property
    def safe(self) -> bool:
        """The margin is so wide that rounding alone does not flip the word."""
        return self.margin > SAFE_MARGIN * self.floor


@dataclass(frozen=True)
class Logits:
    """The logits in one stage, propagated, at evenly spaced tokens (all of them for a small vocabulary).

    Attributes:
        kl: mean KL(reference‖port) in nats; kl_ref: mean KL(golden‖reference).
        worst_kl, worst_token: the largest over tokens, and where.
        nmse: ‖port − reference‖² / ‖reference‖².
        agreement: share of tokens where the argmax agrees.
        tokens: how many tokens were looked at.
        at: what they are at each of these; empty in a report of an earlier porter.
        prompt: index of the prompt.
    """

    stage: StageName
    dtype: str
    kl: float
    kl_ref: float
    worst_kl: float
    worst_token: int
    nmse: float
    agreement: float
    tokens: int = 0
    at: tuple[LogitsAt, ...] = ()
    prompt: int = 0
