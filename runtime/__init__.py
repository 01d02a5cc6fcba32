"""What every command shares.

Reading order: ``settings`` (settings as plain YAML), ``processes`` (worker processes), ``files``
(atomic and partitioned output), ``readers`` (rows by their id), ``net`` (a guarded HTTP client),
``console`` (commands, progress, reports), ``service`` (the shell of the HTTP services).
"""
