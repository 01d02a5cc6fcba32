"""Readers give regions and images by their id, from files that are mapped into memory.

Reading order: ``region_rows`` (what a row is), ``regions`` (the reader), ``row_index`` (ids to
rows), ``region_group`` and ``mapped`` (a part of a shard), ``joined_regions`` (two tables as one)
and ``images``, which reads images in the same way; ``joining`` (ids of one table in another),
``class_names`` and ``trained_on`` (what weights have seen). ``runtime.files.value_offsets``
finds the bytes of a row.
"""
