"""The optimiser moves weights.

Reading order: ``groups`` (which parameters decay), ``adam``, ``schedule`` and ``average``.
"""
