"""This job fits the model that says whether a text describes its image, on labelled pairs.

Reading order: ``command`` (the flags) and ``job``.
"""
