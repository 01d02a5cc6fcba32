"""Tables are files here, which are written whole and found again.

Reading order: ``atomic`` (temporary name, fsync, rename), ``shards`` (one file of a table),
``places`` (where in it the bytes of each row lie),
``manifest`` (the folder's list with checksums), ``outputs`` (what an earlier run has left),
``reading`` (shards of a folder, a file or a glob) and ``contents`` (what rows promise).
"""
