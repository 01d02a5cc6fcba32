"""A run goes over many images, and can be killed and continued.

Reading order: ``job``, ``inputs`` (what it has read), ``devices`` (one process each), ``workers``
(decoding) with the ``ring`` of memory for pixels, ``batches``, ``duplicates`` (rows or rejects),
``shards`` (writing) and ``cost``.
"""
