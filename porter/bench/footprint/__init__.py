"""What a training step holds in memory, from the blueprint alone: no weights, no GPU, no torch.

tape is a list of operations and what each keeps for backward; layer and head write a model's, as HuggingFace's code
computes it or with porter's kernels in place; step adds weights, gradients and optimizer, and finds the peak; worth
asks whether the fused loss pays; fit, what a card holds.
"""
