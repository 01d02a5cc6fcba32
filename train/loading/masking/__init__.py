"""Masking hides what a model has to guess.

Reading order: ``words``, ``regions`` and ``patches``.
"""
