"""Extracts many images in a run that can be killed and continued.

Reading order: ``job`` (which also writes), ``devices`` (one process each), ``workers`` (decoding),
``batches`` (rows and duplicates) and ``cost``.
"""
