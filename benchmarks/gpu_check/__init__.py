"""Measures a machine with a GPU: ``make gpu-check``."""
