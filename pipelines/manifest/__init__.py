"""Writes data sets as tables of pairs and images.

Reading order: ``__main__`` (the command) and its two halves, ``own`` (the user's own captions) and
``published`` (data sets: ``entries`` defines them, ``sets`` has a file for each). Both take
``flags``, write ``part`` by part, on a runner from ``spooled`` files, read files by ``reading`` and
``layouts``, clean texts by ``cleaning``, name lists by ``labels``, and end with ``reject_counts``,
``report`` and ``cost``.
"""
