"""Stores the pairs of a run, joined, tokenised and checked once.

Reading order: ``pairs`` (the table), ``splits`` (which rows are trained on), ``usable`` (why others
are excluded), ``prepare`` (the data that training keeps), ``files`` (how it is written), ``near``
(each image's nearest images) and ``table`` (how it is read).
"""
