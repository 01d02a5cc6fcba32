"""Provides the modules that every command shares.

Reading order: ``settings`` (settings as plain YAML), ``extras`` (modules that only some commands
need), ``bus_errors`` (mapped files that shrink), ``memory`` (freed memory that is kept), ``cores``
and ``processes`` (of workers), ``bounded_calls`` (calls in processes with a deadline and a memory
limit), ``files`` (tables that are written completely and found again), ``readers`` (a row by its
id), ``net`` (a guarded HTTP client), ``console`` (commands, progress, reports), ``client`` (of the
services, which `vlmill.client` exports), ``units`` (the engine of all jobs), ``weights`` (weights
by name) and ``service`` (the shell of the HTTP services). It imports only ``vlmill.schemas``.
"""
