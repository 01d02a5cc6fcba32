"""This folder holds the contracts between stages, and what every command shares.

Stages talk through Parquet tables, never through imports. ``tables`` fixes the columns, ``rejects``
says why a thing was dropped, ``ids`` how pictures and pairs are named, and ``plain_yaml`` reads
settings that others wrote. ``files`` writes tables whole and finds them again, ``pictures`` turns
bytes into upright pixels, ``readers`` reads a row of regions or a picture by its id, and
``console`` is the shell around every command. Nothing here imports anything else of vlmill. Read
``tables``, then ``files``.
"""
