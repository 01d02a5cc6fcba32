"""Reads feature files of other projects into rows of regions, and writes them from rows.

Each format has a file with ``read(path, context)``, which yields functions that read one record
each, and ``write(rows, files, plan)``, which writes the remaining rows of an export. A reader
raises InputError for a file of another layout; a single invalid record is an
:class:`~vlmill.extract.formats.records.InvalidRecord`. Nothing here executes the content of a file.

Reading order: ``names`` (the formats), ``command``, ``records`` (the fields of a record),
``classes`` (how a file numbers them), ``sizes`` and ``context`` (inputs of a reader besides the
file), ``sources`` (the files that an argument names), ``rows`` and ``parts`` (from records to
shards), ``import_file``; ``plan``, ``unfinished`` (an export until it is complete) and
``export_file``. The formats are ``tsv``, ``lmdb`` (with ``lmdb_pages`` and ``lmdb_file``, which
read and write an LMDB without its library), ``npy`` and ``npz`` (with ``arrays`` and ``folders``),
``pickled`` and ``similar_pickles`` (write and read the pickles of these formats), ``uniter``,
``cocobu``, ``hdf5`` (with ``hdf5_write``), ``oscar``, ``oscar_write`` and
``vlbert``.
"""
