"""These give the same numbers faster on a CPU; without this folder PyTorch computes them.

Only ``layers/operators`` imports them. Reading order: ``linear``, ``dropout``, ``attention``.
"""
