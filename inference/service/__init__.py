"""Serves a checkpoint over HTTP: ``train-vl serve``.

Reading order: ``command``, ``questions``, ``computing`` (runs in a worker; images are decoded in
processes that can be killed), ``served_index`` (searched in the front process), ``openapi`` and
``app``.
"""
