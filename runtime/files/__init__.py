"""Tables are files here, which are written whole and found again.

Reading order: ``atomic`` (temporary name, fsync, rename), ``written`` (digests of what a unit
writes), ``shards`` (one file of a table), ``growing`` (its digest as it grows), ``value_offsets``
(where the bytes of each row are in it), ``inputs`` (what a job has read), ``listed`` (files
compared with a record of their digests), ``manifest`` (the folder's list with checksums), ``lock``
(one run at a time), ``outputs`` (what an earlier run has left), ``text_sizes`` (how long texts may
be), ``contract`` (does a file hold what its table promises?), ``reading`` (shards of a folder, a
file or a glob), ``contents`` (what rows promise), ``digests`` (an input recognised again, cheaply),
``kept_values`` (what earlier rows have said) and ``checkpoints`` (those of a run, by their steps).
Paths in object stores: ``stores`` (which store is asked, and what fails), ``seekable`` and
``ranges`` (an object read in parts), ``remote`` (an object as a path), ``paths`` (what an argument
names, there or here), ``copies`` (for what is mapped), ``remote_lock`` and ``mirror`` (of a run
whose files grow).
"""
