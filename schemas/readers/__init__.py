"""Readers give regions and pictures by their id, from files that are mapped into memory.

Reading order: ``region_rows`` (what a row is), ``regions`` (the reader), ``row_index`` (ids to
places), ``region_group`` and ``mapped`` (a part of a shard) and ``images``, which reads pictures in
the same way. Where the bytes of a row lie says ``schemas.files.places``.
"""
