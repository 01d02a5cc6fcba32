"""Computes the same numbers faster on a CPU; without this folder PyTorch computes them.

Only ``layers/operators`` imports it. Reading order: ``linear``, then ``attention`` (with dropout).
"""
