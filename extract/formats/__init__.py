"""Feature files of other projects are read into rows of regions, and written from them.

Each format has a file with ``read(path, context)``, which yields records that are read when they
are called, and ``write(rows, path, plan)``, which makes the whole export or none. A reader raises
InputError for a file of another layout; a single record that is wrong is an
:class:`~vlmill.extract.formats.records.InvalidRecord`. Nothing here executes what a file says.

Reading order: ``names`` (the formats), ``command``, ``records`` (what a record is), ``classes``
(how a file counts them), ``sizes`` and ``context`` (inputs of a reader beyond the file),
``sources`` (the files that an argument names), ``rows`` and ``parts`` (records become shards),
``import_file``;
``plan`` and ``export_file``. The formats are ``tsv``, ``lmdb`` (with ``lmdb_pages``, which reads an
LMDB without its library), ``npy`` and ``npz`` (with ``arrays`` and ``folders``), ``uniter``,
``cocobu``, ``hdf5`` (with ``hdf5_groups`` and ``hdf5_write``), ``oscar``, ``oscar_write`` and
``vlbert``.
"""
