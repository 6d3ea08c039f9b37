"""A decoder layer on a tape."""

from porter.bench.footprint.parts import WIDE, Writer
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.tape import INPUT, Tape
from porter.specs.blueprint import Blueprint, projections
from porter.specs.rope import Rope
from porter.specs.schema import Block, Dims, QKNorm


def write_layer(blueprint: Blueprint, block: Block, plan: Plan) -> Tape:
    """What a layer computes and keeps, from the residual stream to the residual stream."""
    tape = Tape(plan.rows * blueprint.dims.hidden * plan.element)
    return _Layer(tape, plan, blueprint, block).write()


def table_bytes(rope: Rope, dims: Dims, plan: Plan) -> int:
    """Of HF's cos and sin for one kind of rotation, each frequency twice."""
    return 2 * plan.tokens * rope.width(dims.head_dim) * (WIDE if rope.table_dtype == "fp32" else plan.element)


class _Layer(Writer):
    def __init__(self, tape: Tape, plan: Plan, blueprint: Blueprint, block: Block) -> None:
        super().__init__(tape, plan)
        self.blueprint, self.block, self.dims = blueprint, block, blueprint.dims
        self.maps = projections(block, self.dims, blueprint.weights)
        self.stream = plan.rows * self.dims.hidden * plan.element

    def write(self) -> Tape:
        """All of it."""
        attn, mlp = self.block.attn, self.block.mlp
        entered = self._stream_norm("attn.norm", INPUT) if attn.pre_norm else INPUT
        branch = self._leave("attn", self._attention(entered), attn.post_norm)
        if self.block.topology == "parallel":
            given = entered if mlp.pre_norm == "shared" else self._stream_norm("mlp.norm", INPUT)
            other = self._leave("mlp", self._mlp(given), mlp.post_norm)
            both = self._add("branches", branch, other)
            self._add("resid_post", INPUT, both)
            return self.tape
        x = self._add("resid_mid", INPUT, branch)
        x = self._stream_norm("attn.after_norm", x) if attn.after_norm else x
        given = self._stream_norm("mlp.norm", x) if mlp.pre_norm else x
        x = self._add("resid_post", x, self._leave("mlp", self._mlp(given), mlp.post_norm))
        if mlp.after_norm:
            self._stream_norm("mlp.after_norm", x)
        return self.tape

    def _stream_norm(self, name: str, x: str) -> str:
        return self.norm(name, x, self.dims.hidden, self.blueprint.norm)

    def _add(self, name: str, x: str, y: str) -> str:
        return self.tape.write(name, self.stream, (x, y), hands_on=True)

    def _leave(self, name: str, x: str, post_norm: bool) -> str:
        """What is done to a branch's result before it is added."""
        x = self._stream_norm(f"{name}.post_norm", x) if post_norm else x
        return x if self.block.residual_scale == 1.0 else self.tape.write(f"{name}.scaled", self.stream, (x,))

    def _project(self, name: str, x: str) -> str:
        width_out, width_in, bias = self.maps[name]
        return self.linear(name, x, width_in, width_out, bias=bias)

    # --- attention ---------------------------------------------------------------------------

    def _attention(self, x: str) -> str:
        attn, dims = self.block.attn, self.dims
        if "attn.qkv" in self.maps:
            q = k = v = self._project("attn.qkv", x)
        else:
            q, k, v = (self._project(f"attn.{each}", x) for each in "qkv")
        q, k = self._on_heads("q", q, dims.heads), self._on_heads("k", k, dims.kv_heads)
        if attn.clip_qkv is not None:
            q, k, v = (
                self._clip(f"attn.{n}_clip", t, h) for n, t, h in zip("qkv", (q, k, v), self._heads, strict=True)
            )
        eager = self.plan.attention == "eager" or attn.softcap is not None
        context = self._eager(q, k, v) if eager else self._sdpa(q, k, v)
        if attn.inner_norm:
            context = self.norm("attn.inner_norm", context, dims.heads * dims.head_dim, self.blueprint.norm)
        return self._project("attn.o", context)

    @property
    def _heads(self) -> tuple[int, int, int]:
        return self.dims.heads, self.dims.kv_heads, self.dims.kv_heads

    def _bytes(self, heads: int) -> int:
        return self.plan.rows * heads * self.dims.head_dim * self.element

    def _clip(self, name: str, x: str, heads: int) -> str:
        return self.tape.write(name, self._bytes(heads), (x,), saves=(x,))

    def _on_heads(self, name: str, x: str, heads: int) -> str:
        """The norm of queries or keys, and their rotation."""
        spec, rope = self.block.attn.qk_norm, self.block.rope
        if spec is not None and spec.when == "before_rope":
            x = self._head_norm(name, x, heads, spec)
        x = self._rotate(name, x, heads, rope) if rope is not None else x
        if spec is not None and spec.when == "after_rope":
            x = self._head_norm(name, x, heads, spec)
        return x

    def _head_norm(self, name: str, x: str, heads: int, spec: QKNorm) -> str:
        groups, width = (1, heads * self.dims.head_dim) if spec.over == "full" else (heads, self.dims.head_dim)
        return self.norm(f"attn.{name}_norm", x, width, spec, groups=groups)

    def _rotate(self, name: str, x: str, heads: int, rope: Rope) -> str:
        size = self._bytes(heads)
        if not self.plan.fused:
            return self.tape.write(f"attn.{name}_rope", size, (x,), temporary=3 * size, backward_temporary=3 * size)
        tables = "attn.rope_tables"  # halved for the kernel, once for queries and keys
        if tables not in self.tape.sizes:
            self.tape.write(tables, table_bytes(rope, self.dims, self.plan) // 2, ())
        return self.tape.write(f"attn.{name}_rope", size, (x,), saves=(tables,))

    def _sdpa(self, q: str, k: str, v: str) -> str:
        """Flash attention: keeps q, k, v, the context and a float32 a row of scores; with a window, its mask too."""
        plan, window = self.plan, self.block.attn.window
        masked = window is not None and window <= plan.tokens
        saves = [q, k, v]
        reads = [q, k, v]
        if masked:  # HF writes the mask out, repeats keys and values, and torch makes it a bias of the scores' dtype
            if self.dims.heads != self.dims.kv_heads:
                k, v = (self._repeat(name, x) for name, x in (("k", k), ("v", v)))
            bias = self.tape.write("attn.bias", plan.batch * plan.tokens**2 * self.element, ())
            saves, reads = [q, k, v, bias], [q, k, v]
        sums = self.tape.write("attn.log_sums", WIDE * plan.rows * self.dims.heads, ())
        size = self._bytes(self.dims.heads)
        wide = size * WIDE // self.element  # torch's kernel sums the gradient of queries in float32
        context = self.tape.write(
            "attn.ctx", size, reads, saves=(*saves, "result", sums), backward_temporary=wide + 2 * size
        )
        copied = self._by_heads() and not self.plan.fused  # porter's rotation keeps the order that it finds
        return self.tape.write("attn.ctx_rows", size, (context,)) if copied else context

    def _by_heads(self) -> bool:
        """Whether queries lie head by head, as torch.cat leaves them where a part of a head is rotated. Then the
        context does too, and the output projection is given a copy in the order of tokens."""
        rope = self.block.rope
        return rope is not None and (rope.width(self.dims.head_dim) < self.dims.head_dim or "attn.qkv" in self.maps)

    def _repeat(self, name: str, x: str) -> str:
        return self.tape.write(f"attn.{name}_repeated", self._bytes(self.dims.heads), (x,))

    def _eager(self, q: str, k: str, v: str) -> str:
        """softmax in float32 of all scores; products of many samples copy what is not in order of heads."""
        plan, dims, tape = self.plan, self.dims, self.tape
        if dims.heads != dims.kv_heads:
            k, v = (self._repeat(name, x) for name, x in (("k", k), ("v", v)))
        elif plan.batch > 1 and v == "attn.qkv":
            v = tape.write("attn.v_rows", self._bytes(dims.heads), (v,))
        count = plan.rows * dims.heads * plan.tokens
        size = count * self.element
        scores = tape.write("attn.product", size, (q, k), saves=(q, k))
        scores = tape.write("attn.scores", size, (scores,))
        if self.block.attn.softcap is not None:
            scores = self.softcap("attn.scores", scores, size)
        scores = tape.write("attn.masked", size, (scores,), hands_on=True)
        probs = tape.write("attn.probs", count * WIDE, (scores,), saves=("result",))
        probs = self.uncast("attn.probs_rounded", probs, count)
        context = tape.write("attn.heads", self._bytes(dims.heads), (probs, v), saves=(probs, v))
        return tape.write("attn.ctx", self._bytes(dims.heads), (context,))

    # --- feed-forward ------------------------------------------------------------------------

    def _mlp(self, x: str) -> str:
        mlp, width = self.block.mlp, self.dims.ffn
        if not mlp.gated:
            hidden = self.activation("mlp.act", self._project("mlp.up", x), width, str(mlp.act))
        else:
            if "mlp.gate_up" in self.maps:
                gate = up = self._project("mlp.gate_up", x)
            else:
                gate, up = self._project("mlp.gate", x), self._project("mlp.up", x)
            if self.plan.fused and not mlp.inner_norm:
                return self._gated_down(gate, up, width)
            hidden = self._gated(gate, up, width, str(mlp.act))
        if mlp.inner_norm:
            hidden = self.norm("mlp.inner_norm", hidden, width, self.blueprint.norm)
        return self._project("mlp.down", hidden)

    def _gated_down(self, gate: str, up: str, width: int) -> str:
        """porter's glu_linear, which keeps gate and up, and computes their product again."""
        width_out, width_in, bias = self.maps["mlp.down"]
        both, product = tuple(dict.fromkeys((gate, up))), self.plan.rows * width * self.element
        return self.tape.write(
            "mlp.down", self.plan.rows * width_out * self.element, both, saves=both, temporary=product,
            backward_temporary=2 * product, parameter_bytes=(width_in + bias) * width_out * self.element,
        )  # fmt: skip

    def _gated(self, gate: str, up: str, width: int, act: str) -> str:
        size, both = self.plan.rows * width * self.element, tuple(dict.fromkeys((gate, up)))
        if self.plan.fused:
            return self.tape.write("mlp.product", size, both, saves=both)
        active = self.activation("mlp.act", gate, width, act)
        return self.tape.write("mlp.product", size, (active, up), saves=(active, up))
