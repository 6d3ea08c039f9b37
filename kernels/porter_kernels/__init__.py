"""Ops of language models, each twice: `<op>_reference` in plain torch, and `<op>` in Triton, forward and backward.

    from porter_kernels.rms_norm import rms_norm, rms_norm_reference

A module is named like its op, so ops are imported from their modules and this package exports none of them.
A reference casts where the models' own code casts, and stays in float64 when given float64; it needs no Triton.
A kernel computes in float32 and rounds once, at the store; it runs on a GPU, or on a CPU in Triton's interpreter
if `use_interpreter_on_cpu` was called before anything imported triton.

Modules     rms_norm, layer_norm, rope, rope_tables, glu, softcap, attention, cross_entropy,
            linear_cross_entropy;
            accuracy says how far a kernel may be off
"""

from porter_kernels.interpret import use_interpreter_on_cpu

__all__ = ["use_interpreter_on_cpu"]
