"""Cleans and judges the texts of pairs.

Reading order: ``words``, ``sentences``, ``balance``, ``personal`` and ``lists``, ``captions``
(which uses them all) and ``language``.
"""
