"""This folder holds the contracts between stages, and what every command shares.

Stages talk through Parquet tables, never through imports. ``tables`` fixes the columns, ``rejects``
says why a thing was dropped, ``ids`` and ``names`` how images and pairs are named, ``splits``
which are held out, ``labels`` and ``answers`` what classifiers know and how VQA compares answers;
``errors`` are those that users can mend, ``plain_yaml`` reads settings that others wrote and
``plain_fields`` makes dataclasses of them, ``processes`` starts workers, ``extras`` has the modules
that only some commands need. ``files`` writes tables whole and finds them again, ``images`` turns
bytes into upright pixels, ``readers`` reads a row of regions or an image by its id, ``net`` is the
client of the web, ``service`` the shell of what is served, and ``console`` that of every command.
Nothing here imports anything else of vlmill. Read ``tables``, then ``files``.
"""
