"""All commands share this shell.

Reading order: ``command`` (arguments, exit statuses, one-line errors), ``streams`` (standard
streams that may be closed), ``recipes`` (listed and shown),
``progress``, ``cost`` (estimated before a run), ``stopping``, ``threads`` and ``memory`` (bounds of
a process), ``process_group`` (a training's processes and devices), ``log`` and ``trackers`` (curves
of a run), ``report`` and ``bars`` (pages in HTML), ``drawing`` (boxes on an image) and ``lineage``
(what a result was made of).
"""
