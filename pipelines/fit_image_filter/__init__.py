"""Fits an image filter, for safety or realism, on labelled images.

Reading order: ``command`` (the flags) and ``job``.
"""
