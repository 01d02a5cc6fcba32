"""This job concatenates, filters, samples and removes rows of tables.

Reading order: ``command``, ``inputs``, ``conditions`` (of ``--where``), ``choice`` (which rows
stay), ``removal`` (of rows whose owners ask for it), ``job`` (writing) and ``on_beam``.
"""
