"""Concatenates, filters, samples and removes rows of tables.

Reading order: ``__main__``, ``inputs``, ``conditions`` (of ``--where``), ``choice`` (rows to keep),
``removal`` (rows whose owners request it) and ``job`` (the steps, repeated rows, the final files).
"""
