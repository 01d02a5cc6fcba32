"""This is BEiT, with the image tokenizers that it learns from.

Reading order: ``config``, ``model``, ``dvae``, ``published`` and ``published_dvae``.
"""
