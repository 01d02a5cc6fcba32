"""Fits an image filter, for safety or realism, on labelled images.

Reading order: ``__main__`` (the flags) and ``job``.
"""
