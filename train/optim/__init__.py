"""Builds the optimisers that update weights.

Reading order: ``groups`` (which parameters are trained, and which decay), ``adam``, ``schedule``
and ``average``.
"""
