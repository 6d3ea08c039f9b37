"""Benchmarks of the fused ops beside their peers: is a provider right, how fast is it, what memory does it take.

cases and operators say what is measured, providers who computes it, truth and accuracy who is right, device, clock
and roofline how long it takes and what the card allows, results what is written, ranking what it means.
cases, results and ranking need no torch: a report is drawn from a file on any machine.
"""
