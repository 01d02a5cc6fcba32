"""Cleans and judges the texts of pairs.

Reading order: ``words``, ``sentences``, ``phrases`` (the word lists of each language), ``balance``,
``personal``, ``blocked`` and ``wordfreq`` (words that vlmill and a package list), ``lists``, ``captions`` (which uses them all) and ``language``.
"""
