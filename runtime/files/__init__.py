"""Writes tables as files, completely or not at all, and finds them again.

Reading order: ``atomic`` (temporary name, fsync, rename), ``written`` (digests of a unit's files),
``shards`` (one file of a table), ``growing`` (its digest as it grows), ``value_offsets`` (positions
of each row's bytes in it), ``inputs`` (inputs of a job), ``listed`` (compares files with recorded
digests), ``manifest`` (the folder's list with checksums), ``lock`` (one run at a time), ``outputs``
(the state of an output folder), ``text_sizes`` (limits the length of texts), ``contract`` (checks a
file against its table's contract), ``reading`` (shards of a folder, a file or a glob), ``contents``
(checks rows), ``digests`` (recognises an input cheaply), ``kept_values`` (values of earlier rows)
and ``checkpoints`` (of a run, by step).

Paths in object stores: ``stores`` (selects the store, handles failures), ``seekable`` (files read
in parts), ``remote`` (an object as a path, read by ranges), ``paths`` (local or remote path of an
argument), ``copies`` (for memory-mapped files), ``remote_lock`` and ``mirror`` (runs whose files
grow).
"""
