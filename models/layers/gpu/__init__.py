"""These give the same numbers faster on a GPU, in training; without them PyTorch computes.

Attention with a learned bias reads the bias once for all sequences, and a residual sum takes its
gradients in one pass. Only ``layers/attention`` and ``layers/experts`` import them. Reading order:
``biased_attention``, ``bias_kernels``, ``residual``, ``residual_kernel``.
"""
