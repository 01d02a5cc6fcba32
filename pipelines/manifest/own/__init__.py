"""Converts the user's own captions, questions, statements and labels: ``manifest own``.

Reading order: ``flags`` and ``command``, then ``cells`` and ``kinds`` (rows become examples),
``job`` (examples become rows of tables, with their images) and ``scan`` (counts rows, lists
labels).
"""
