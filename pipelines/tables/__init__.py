"""Concatenates, filters, samples and removes rows of tables.

Reading order: ``command``, ``inputs``, ``conditions`` (of ``--where``), ``choice`` (rows to keep),
``repeats`` (rows that occurred earlier), ``removal`` (rows whose owners request it) and ``job``
(the steps and the final files).
"""
