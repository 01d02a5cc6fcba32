"""Builds the optimisers that update weights.

Reading order: ``groups`` (which parameters decay), ``freezing`` (which keep their values),
``adam``, ``schedule`` and ``average``.
"""
