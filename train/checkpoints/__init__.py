"""Writes and reads checkpoints, from which a run continues.

Reading order: ``folders`` (paths), ``named`` (checkpoints of the hub and the web), ``files``
(written and read completely) and ``detector`` (the detector of the regions, in words).
"""
