"""Sets up devices and processes, measures them and gathers their data.

Reading order: ``flags``, ``setup``, ``casts`` (weights in half precision), ``gather`` (across
processes), ``foreach`` (many tensors by one call) and ``throughput``.
"""
