"""Cleans and judges the texts of pairs.

Reading order: ``words``, ``sentences``, ``phrases`` (the word lists of each language), ``balance``,
``personal``, ``blocked`` and ``wordfreq`` (lists of words), ``lists``, ``captions`` (which uses
them all) and ``language``.
"""
