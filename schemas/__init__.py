"""Defines the contracts between stages.

Stages exchange Parquet tables and never import one another. ``tables`` defines the columns,
``rejects`` lists the reasons for dropping a row, ``ids`` and ``names`` define the ids of images and
pairs, ``splits`` the names of splits, ``labels`` and ``answers`` the answer lists of classifiers
and how VQA compares answers. ``errors`` has the errors that users can fix, ``plain_json`` parses
untrusted JSON, ``plurals`` formats counts.
``images`` decodes bytes to upright pixels. This package imports nothing else of vlmill. Read
``tables``, then ``rejects``.
"""
