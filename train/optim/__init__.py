"""Builds the optimisers that update weights.

Reading order: ``groups`` (which parameters decay), ``adam``, ``schedule`` and ``average``.
"""
