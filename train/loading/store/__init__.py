"""The store holds the pairs of a run, joined, tokenised and checked once.

Reading order: ``pairs`` (the table), ``prepare`` (what training keeps of it), ``files`` (as it is
written) and ``table`` (as it is read).
"""
