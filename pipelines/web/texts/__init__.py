"""Texts of pairs are cleaned and judged here.

Reading order: ``words``, ``sentences``, ``balance``, ``personal`` and ``lists``, ``captions``
(which uses them all) and ``language``.
"""
