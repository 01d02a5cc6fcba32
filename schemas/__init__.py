"""The contracts between stages, and what every command shares.

Stages talk through Parquet tables, never through imports: ``tables`` fixes their columns,
``shards`` and ``manifest`` how they are written, ``reading`` how they are found and read,
``regions`` the layout of region features, ``rejects`` what happens to a thing that is dropped.
``atomic``, ``outputs``, ``commands``, ``progress`` and ``report`` are the shell around every job.
Nothing here imports anything else of vlmill.
"""
