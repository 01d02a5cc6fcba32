"""This is BEiT, with the picture tokenizers that it learns from.

Reading order: ``model``, ``dvae``, ``published`` and ``published_dvae``.
"""
