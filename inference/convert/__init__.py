"""Converts published checkpoints to vlmill's format and back.

Reading order: ``command`` (the flags), ``arguments`` (checks before any file is read), ``named``
(downloads of named checkpoints), ``conversion``, ``starts`` (new models from others) and
``origins``.
"""
