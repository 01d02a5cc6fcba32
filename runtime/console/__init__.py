"""Provides the shell that all commands share.

Reading order: ``command`` (arguments, exit statuses, one-line errors), ``streams`` (closed standard
streams), ``recipes`` (list and show), ``merged_names`` (long lists of parameters in one line),
``progress``, ``cost`` (estimates before a run), ``stopping``, ``threads`` (of a process),
``process_group`` (a training's processes and devices), ``log`` and ``trackers`` (curves of a run),
``report`` and ``bars`` (HTML pages), ``drawing`` (boxes on an image) and ``lineage`` (inputs of a
result).
"""
