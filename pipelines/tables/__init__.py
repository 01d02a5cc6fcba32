"""Concatenates, filters, samples and removes rows of tables.

Reading order: ``command``, ``inputs``, ``conditions`` (of ``--where``), ``choice`` (which rows
stay), ``repeats`` (of rows that came earlier), ``removal`` (of rows whose owners ask for it) and
``job`` (the steps, and the end).
"""
