"""Weights by name: what ``hf://...`` and ``https://...`` mean, and where their files are kept.

Reading order: ``names`` (what a name says), ``download`` (one file of the web), ``hub`` (files of a
repository of the Hugging Face hub), ``published`` (the table of what was published, of
``published.json``), ``listing`` (that table as text and as a page).
"""
