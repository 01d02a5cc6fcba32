"""Texts of pairs are cleaned, judged and scored here.

Reading order: ``words``, ``captions``, ``language`` and ``scoring``.
"""
