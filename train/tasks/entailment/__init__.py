"""Entailment: whether an image entails a statement, contradicts it, or neither (SNLI-VE); also
whether a statement about one image is true (VSR).

Reading order: ``row``, ``settings``; the rest is ``train.tasks.classification``.
"""
