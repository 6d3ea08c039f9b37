"""The result of a diff: frozen dataclasses that porter.reports writes as JSON, HTML and terminal text.

Errors are relative: e = ‖x − golden‖₂ / ‖golden‖₂. ρ = e_port / max(e_reference, floor). The rules are in verdicts.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from porter.comparison.explained import Explained
from porter.comparison.logits_record import Logits
from porter.comparison.names import GRADIENT, NodeKind, StageName, place_in_unit
from porter.comparison.observed import Axis, Injected, Proposal, Share
from porter.comparison.sample import Sample

Verdict = Literal["PASS", "WARN", "FAIL", "INCONCLUSIVE", "NOT_COMPARED"]
SCHEMA = "porter.diff/1"


@dataclass(frozen=True)
class Local:
    """A node when its layer is fed golden's input, rounded to the dtype.

    Attributes:
        e_port, e_ref: relative errors against golden.
        rho: e_port / max(e_ref, floor); of a gradient below float32, less where few channels decide (measure.py).
        rho_tok: largest relative error of a token in the port / largest in the reference.
        token: index of the port's worst token.
    """

    e_port: float
    e_ref: float
    rho: float
    rho_tok: float
    token: int
    tokens: tuple[float, ...]  # rho of each token: its error in the port / the reference's largest


@dataclass(frozen=True)
class Propagated:
    """A node when each side runs on its own hidden states.

    Attributes:
        l2: ‖port − reference‖₂; log10_l2 is its logarithm, None when the two are bit-equal.
        rel_l2: l2 / ‖reference‖₂.
        e_port, e_ref: relative errors against golden, propagated too.
        floor_l2: ‖reference − golden‖₂, what rounding alone costs the reference here.
    """

    l2: float
    log10_l2: float | None
    rel_l2: float
    e_port: float
    e_ref: float
    floor_l2: float


@dataclass(frozen=True)
class Worst:
    """The element that differs most between port and reference (local)."""

    difference: float
    at: tuple[int, ...]
    port: float
    reference: float


@dataclass(frozen=True)
class NodeDiff:
    """One node in one stage.

    Attributes:
        name: layers.3.attn.ctx, embed.out, final.norm, logits; grad:layers.3.attn.ctx, grad:layers.3.attn.q.weight for
            gradients, whose tokens are rows where they are a parameter's.
        exact: the executor's bits equal the reference's on the same input; None when not compared.
        bias: mean(port − golden) / rms(port − golden).
        trimmed: e_port without the 0.1 % largest channels.
        cosine: of port and reference; for display only.
        ulp_p99: 99th percentile of |port − reference| in units of the last place of the dtype.
        nonfinite: counts in (port, reference).
        prompt: index of the prompt it is worst for.
    """

    name: str
    kind: NodeKind
    stage: StageName
    dtype: str
    shape: tuple[int, ...]
    status: Verdict
    reason: str
    exact: bool | None = None
    local: Local | None = None
    propagated: Propagated | None = None
    worst: Worst | None = None
    bias: float = 0.0
    trimmed: float = 0.0
    cosine: float = 1.0
    ulp_p99: float = 0.0
    nonfinite: tuple[int, int] = (0, 0)
    prompt: int = 0
    sample: Sample | None = None  # of nodes that a reader looks at first

    @property
    def layer(self) -> int | None:
        """3 for layers.3.attn.ctx, else None."""
        parts = self.place.split(".")
        return int(parts[1]) if parts[0] == "layers" else None

    @property
    def node(self) -> str:
        """attn.ctx for layers.3.attn.ctx; the name itself outside layers."""
        return place_in_unit(self.name)

    @property
    def place(self) -> str:
        """Of a gradient, what it is the gradient of; else the name."""
        return self.name.removeprefix(GRADIENT)

    @property
    def is_parameter(self) -> bool:
        """A gradient of a parameter."""
        return self.name.startswith(GRADIENT) and self.name.partition("#")[0].endswith((".weight", ".bias"))


@dataclass(frozen=True)
class Stage:
    """One stage's verdict in one dtype, and its first failing node."""

    name: StageName
    dtype: str
    status: Verdict
    compared: int
    first: str | None  # first FAIL, else first WARN; for exact the first unequal node
    detail: str


@dataclass(frozen=True)
class Check:
    """One preflight check.

    Attributes:
        head, rows: what was compared, as a table; empty where the detail says it all.
    """

    name: str
    status: Verdict
    detail: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Behaviour:
    """One check of the behaviour stage in one dtype: another way through the model that must not matter.

    Attributes:
        name: cache, decode, chunks, window, padding.left, padding.right, batch, packed, prompts, logits, greedy, loss.
        measured, limit: what was found, and what it may be to pass; 0.0 where nothing was compared.
        detail: what was compared and what came of it, in one sentence.
        where: the node and token that are worst, or the step; empty where it does not apply.
        prompt: index of the prompt it is worst for.
    """

    name: str
    dtype: str
    status: Verdict
    measured: float
    limit: float
    detail: str
    where: str = ""
    prompt: int = 0


@dataclass(frozen=True)
class Side:
    """One side of the comparison: what it is and how it ran."""

    what: str  # "gemma-3-270m, plain torch" or "transformers 5.24.0 Gemma3ForCausalLM, eager"
    dtype: str
    device: str
    details: Mapping[str, str]


@dataclass(frozen=True)
class Prompt:
    """The tokens of one prompt."""

    label: str
    ids_sha256: str
    length: int
    ids: tuple[int, ...]
    tokens: tuple[str, ...]  # decoded one by one; empty without a tokenizer


@dataclass(frozen=True)
class DiffReport:
    """Everything a diff found."""

    name: str  # gemma-3-270m
    created: str  # UTC, ISO 8601
    verdict: Verdict
    exit_code: int
    sentence: str  # the one sentence that says it
    port: Side
    reference: Side
    spec_hash: str
    overrides: tuple[str, ...]
    weights: str
    num_layers: int
    prompts: tuple[Prompt, ...]
    stages: tuple[Stage, ...]
    preflight: tuple[Check, ...]
    nodes: tuple[NodeDiff, ...]
    logits: tuple[Logits, ...]
    axes: tuple[Axis, ...]
    declared: int  # nodes the port declares
    thresholds: Mapping[str, Mapping[str, tuple[float, float]]]  # dtype -> metric -> (pass, fail)
    environment: Mapping[str, str]
    command: str
    timings_s: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()  # what counted as divergence besides FAIL
    behaviour: tuple[Behaviour, ...] = ()
    golden: Mapping[str, str | int] = field(default_factory=dict)  # the cache it came from; empty: it was run
    self_check: tuple[Injected, ...] = ()  # empty where none was asked for
    proposals: tuple[Proposal, ...] = ()  # lines for a module's map
    attribution: tuple[Share, ...] = ()  # layers, then nodes; empty where it was not asked for
    explanations: tuple[Explained, ...] = ()  # what porter explain found, once it was run

    @property
    def compared(self) -> int:
        """Node names with at least one verdict."""
        return len({node.name for node in self.nodes if node.status != "NOT_COMPARED"})

    @property
    def first_fail(self) -> NodeDiff | None:
        """The first failing node, in order of stages and of the forward pass."""
        return next((node for node in self.nodes if node.status == "FAIL"), None)

    @property
    def first_misbehaviour(self) -> Behaviour | None:
        """The first failing check of the behaviour stage."""
        return next((check for check in self.behaviour if check.status == "FAIL"), None)

    @property
    def missed(self) -> tuple[Injected, ...]:
        """The known faults that this run should have caught and did not."""
        return tuple(each for each in self.self_check if each.outcome == "missed")

    def _repr_html_(self) -> str:
        """What a notebook shows. porter.reports draws it, which lies above this package, so it is asked for by name."""
        return str(import_module("porter.reports.notebook").to_frame(self))

    def of_stage(self, stage: StageName) -> Iterator[NodeDiff]:
        return (node for node in self.nodes if node.stage == stage)
