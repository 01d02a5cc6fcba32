"""This folder holds what every command shares.

Reading order: ``settings`` (settings as plain YAML), ``extras`` (modules that only some commands
need), ``bus_errors`` (mapped files that shrink), ``cores`` and ``processes`` (of workers),
``bounded_calls`` (in processes with a deadline and a limit of memory), ``files``
(tables that are written whole and found again), ``readers`` (a row by its id), ``net`` (a guarded
HTTP client), ``console`` (commands, progress, reports), ``units`` (the one engine of the jobs),
``weights`` (weights by name) and ``service`` (the shell of the HTTP services). It imports
``vlmill.schemas`` alone.
"""
