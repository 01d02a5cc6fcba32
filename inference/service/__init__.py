"""Serves a checkpoint over HTTP: ``train-vl serve``.

Reading order: ``command``, ``questions``, ``engine`` (describes a worker), ``computing`` (runs in
it; images are decoded in processes that can be killed), ``served_index`` (searched in the front
process), ``captions``, ``openapi`` and ``app``.
"""
