"""This job computes region features with the engine of ``vlmill.extract``.

Reading order: ``command`` (the flags), ``job`` and ``on_beam``.
"""
