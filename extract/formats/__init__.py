"""Feature files of other projects are read into rows of regions, and written from them.

Each format has a file, ``tsv``, ``lmdb``, ``npz`` and ``hdf5``, with ``read(path) ->
Iterator[Record]``, which never raises for what an untrusted file holds: a record that is wrong is
an :class:`~vlmill.extract.formats.records.InvalidRecord`; and ``write(rows, path)``, which makes
the whole file or none. Nothing here executes what a file says. Reading order: ``names``,
``command``, ``records`` (what a record is), ``classes`` (how a file counts them), ``rows``,
``import_file``, ``export_file`` and then one format; ``lmdb_pages`` reads an LMDB without its
library.
"""
