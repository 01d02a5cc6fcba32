"""Feature files of other projects: read into rows of regions, and written from them.

One file per format. Each has ``read(path) -> Iterator[Record]``, which never raises for what a
stranger's file holds: a record that is wrong is a :class:`~vlmill.extract.legacy.records.Bad`; and
``write(rows, path)``, which makes the whole file or none. Nothing here executes what a file says.
"""
