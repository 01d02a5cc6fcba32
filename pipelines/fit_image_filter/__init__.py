"""This job fits a picture filter, of safety or realism, on labelled pictures.

Reading order: ``command`` (the flags) and ``job``.
"""
