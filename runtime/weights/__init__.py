"""Finds weights by name: files of ``hf://...`` and ``https://...``, and the cache that keeps them.

Reading order: ``published`` (the table of published weights, ``published.toml``), ``listing`` (that
table as text and as a page), ``names`` (the parts of a name), ``download`` (files of the web),
``hub`` (files of a repository of the Hugging Face hub).
"""
