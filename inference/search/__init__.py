"""Writes vectors of images, texts and pairs, and finds the nearest vectors.

Reading order: ``command`` (arguments), ``embedding_inputs`` (tables and modes), ``kinds`` and
``vectors`` (computation), ``embedding`` (shards), ``table`` (reading), ``index``, ``queries``,
``answering``.
"""
