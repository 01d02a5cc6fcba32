"""This is BEiT, with the image tokenizers that it learns from.

Reading order: ``row``, ``config``, ``model``, ``dvae``, ``published`` and ``published_dvae``.
"""
