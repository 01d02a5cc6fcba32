"""Devices and processes are set up, measured and brought together here.

Reading order: ``setup``, ``gather`` (across processes), ``memory`` and ``throughput``.
"""
