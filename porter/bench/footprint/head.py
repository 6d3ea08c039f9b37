"""The final norm, the head and its loss on a tape."""

from porter.bench.footprint.parts import WIDE, Writer
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.tape import INPUT, Tape
from porter.specs.blueprint import Blueprint

LABEL = 8  # bytes of an int64
CHUNK_ROWS = 2048  # of the chunked loss: porter_kernels.linear_cross_entropy.chunked_linear_cross_entropy's default


def write_head(blueprint: Blueprint, plan: Plan) -> Tape:
    """From the residual stream to the loss."""
    dims = blueprint.dims
    tape = Tape(plan.rows * dims.hidden * plan.element)
    writer, x = Writer(tape, plan), INPUT
    if blueprint.final_norm:
        x = writer.norm("final_norm", x, dims.hidden, blueprint.norm)
    if blueprint.embed_width != dims.hidden:
        x = writer.linear("project_out", x, dims.hidden, blueprint.embed_width)
    if plan.loss == "naive":
        _naive(writer, blueprint, x)
    elif plan.loss == "chunked":
        _chunked(writer, blueprint, x)
    else:
        _fused(writer, blueprint, x)
    return tape


def _naive(writer: Writer, blueprint: Blueprint, x: str) -> None:
    """All logits, in float32: transformers loss/loss_utils.py, ForCausalLMLoss."""
    tape, head = writer.tape, blueprint.head
    count = writer.plan.rows * blueprint.dims.vocab
    size = count * writer.element
    logits = writer.linear("logits", x, blueprint.embed_width, blueprint.dims.vocab, bias=head.bias)
    for name, factor in (("mul", head.mul), ("div", head.div)):
        logits = logits if factor == 1.0 else tape.write(f"logits.{name}", size, (logits,))
    if head.softcap is not None:
        logits = writer.softcap("logits", logits, size)
    wide = writer.cast("logits.float", logits, count)
    log_probs = tape.write("loss.log_probs", count * WIDE, (wide,), saves=("result",))
    labels = tape.write("loss.labels", LABEL * writer.plan.rows, ())
    count_of_them = tape.write("loss.count", WIDE, ())
    tape.write("loss", WIDE, (log_probs,), saves=(log_probs, labels, count_of_them))


def loss_sizes(blueprint: Blueprint, plan: Plan) -> tuple[int, int, int]:
    """What porter's loss holds: most above its inputs, then the two gradients that it leaves: hidden's, weight's."""
    from porter_kernels.linear_cross_entropy.chunks import LEAN_ROWS, choose_chunks  # they import torch
    from porter_kernels.linear_cross_entropy.passes import WORTH_A_WAIT

    width, vocab = blueprint.embed_width, blueprint.dims.vocab
    accumulate = "weight" if plan.loss == "fused-lean" or plan.rows <= LEAN_ROWS else "float32"
    # The last token of a sample predicts nothing. Where such rows are left out, a chunk's others are copied together,
    # and so are their gradients before they are put apart.
    drops = plan.rows * width * vocab >= WORTH_A_WAIT
    rows = max(plan.rows - plan.batch, 1) if drops else plan.rows
    chunks = choose_chunks(rows, width, vocab, element_size=plan.element, accumulate=accumulate)
    copies = 2 * chunks.rows * width * plan.element if drops else 0
    return chunks.peak_bytes + copies, plan.rows * width * plan.element, vocab * width * plan.element


def _fused(writer: Writer, blueprint: Blueprint, x: str) -> None:
    """porter's linear_cross_entropy: gradients of hidden states and weight are computed in forward, chunk by chunk."""
    most, d_hidden, d_weight = loss_sizes(blueprint, writer.plan)
    tape, extra = writer.tape, most - d_hidden - d_weight
    if writer.plan.dtype == "float16":  # its gradients wait for the scale of the loss
        tape.write("loss", WIDE, (x,), saves=(x,), temporary=extra, parameter_bytes=d_weight, backward_temporary=extra)
        return
    kept = [tape.write(name, size, ()) for name, size in (("loss.d_hidden", d_hidden), ("loss.d_weight", d_weight))]
    tape.write(
        "loss", WIDE, (x, *kept), saves=(x, *kept), grads=(x,), ready=True, parameter_bytes=d_weight, temporary=extra
    )


def _chunked(writer: Writer, blueprint: Blueprint, x: str) -> None:
    """A chunk's logits at a time, computed again in backward; gradients of the weight are added to one another."""
    rows, vocab = min(CHUNK_ROWS, writer.plan.rows), blueprint.dims.vocab
    d_weight = vocab * blueprint.embed_width * writer.element
    forward = rows * vocab * (writer.element + 2 * WIDE)
    backward = rows * vocab * 3 * WIDE
    more = d_weight if writer.plan.rows > rows else 0
    writer.tape.write(
        "loss", WIDE, (x,), saves=(x,), parameter_bytes=d_weight, temporary=forward, backward_temporary=backward + more
    )
