"""Reads regions and images by their id from memory-mapped files.

Reading order: ``region_rows`` (defines a row), ``regions`` (the reader), ``row_index`` (ids to
rows), ``mapped`` (a part of a shard), ``joined_regions`` (two tables as one) and ``images``, which
reads images in the same manner; ``joining`` (ids of one table in another), ``class_names`` and
``trained_on`` (the training data of weights). ``runtime.files.value_offsets`` finds the bytes of a
row.
"""
