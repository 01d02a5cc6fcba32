"""The store holds the pairs of a run, joined, tokenised and checked once.

Reading order: ``pairs`` (the table), ``splits`` (which rows are trained on), ``usable`` (why
others are left out), ``prepare`` (what training keeps of it), ``files`` (as it is written),
``near`` (which images lie near each other) and ``table`` (as it is read).
"""
