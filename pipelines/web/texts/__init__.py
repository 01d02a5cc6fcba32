"""Cleans and judges the texts of pairs.

Reading order: ``words``, ``sentences``, ``phrases`` (the word lists of each language), ``balance``,
``personal`` and ``lists``, ``captions`` (which uses them all) and ``language``.
"""
