"""Weights by name: what ``hf://...`` and ``https://...`` mean, and where their files are kept.

Reading order: ``published`` (the table of what was published, of ``published.toml``), ``listing``
(that table as text and as a page), ``names`` (what a name says), ``download`` (files of the web),
``hub`` (files of a repository of the Hugging Face hub).
"""
