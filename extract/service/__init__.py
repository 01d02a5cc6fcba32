"""Serves regions over HTTP (``extract-rois serve``), and the viewer of tables (``show --serve``).

Reading order: ``command``, ``computing`` (in the worker processes), ``rows`` (the
responses), ``app``; then ``viewer``.
"""
