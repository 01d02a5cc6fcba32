"""This job fits an image filter, of safety or realism, on labelled images.

Reading order: ``command`` (the flags) and ``job``.
"""
