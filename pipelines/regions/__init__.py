"""Computes region features with the engine of ``vlmill.extract``.

Reading order: ``__main__`` (the flags) and ``job``.
"""
