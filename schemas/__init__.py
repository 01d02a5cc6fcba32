"""This folder holds the contracts between stages.

Stages exchange Parquet tables and never import one another. ``tables`` fixes the columns,
``rejects`` lists the reasons for which a row is dropped, ``ids`` and ``names`` define how images
and pairs are named, ``splits`` which of them are held out, ``labels`` and ``answers`` what
classifiers know and how VQA compares answers. ``errors`` has the errors that users can fix,
``plain_json`` parses JSON that anyone may have written.
``images`` turns bytes into upright pixels. Nothing here imports anything else of vlmill. Read
``tables``, then ``rejects``.
"""
