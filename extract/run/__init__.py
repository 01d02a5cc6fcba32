"""Extracts many images in a run that can be killed and continued.

Reading order: ``job``, ``inputs`` (their record), ``devices`` (one process each), ``workers``
(decoding) with the ``ring`` of memory for pixels, ``batches``, ``duplicates`` (rows or rejects),
``shards`` (writing) and ``cost``.
"""
