"""Computes the same numbers faster on a GPU, in training; without this folder PyTorch computes
them.

Attention with a learned bias reads the bias once for all sequences, and the gradients of a residual
sum take one pass. Only ``layers/attention`` and ``layers/experts`` import it. Reading order:
``biased_attention``, ``bias_kernels``, ``residual``, ``residual_kernel``.
"""
