"""Masks the words, regions and patches that a model has to predict.

Reading order: ``words``, ``regions`` and ``patches``.
"""
