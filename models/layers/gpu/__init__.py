"""Attention with a learned bias on a GPU, by kernels that read the bias once for all sequences.

Only ``layers/attention`` imports this. Reading order: ``biased_attention``, ``bias_kernels``.
"""
