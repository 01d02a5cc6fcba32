"""Devices and processes are set up, measured and brought together here.

Reading order: ``setup``, ``casts`` (weights in half precision), ``gather`` (across processes),
``foreach`` (many tensors by one call), ``memory`` and ``throughput``.
"""
