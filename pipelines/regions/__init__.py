"""This job computes region features with the engine of ``vlmill.extract``: see ``job``."""
