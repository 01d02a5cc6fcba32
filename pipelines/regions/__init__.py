"""Computes region features with the engine of ``vlmill.extract``.

Reading order: ``command`` (the flags) and ``job``.
"""
