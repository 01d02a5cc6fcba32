"""Regions over HTTP: ``extract-rois serve``, and the viewer of tables that ``show --serve`` is.

Reading order: ``command``, ``engine`` and ``computing`` (in the worker processes), ``rows`` (what
is answered), ``app``; then ``viewer``.
"""
