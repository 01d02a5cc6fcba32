"""A run goes over many pictures, and can be killed and continued.

Reading order: ``job``, ``devices`` (one process each), ``workers`` (decoding), ``batches`` and
``shards`` (writing).
"""
