"""Search writes vectors of images, texts and pairs, and finds the nearest of many.

Reading order: ``command`` (arguments), ``embedding_inputs`` (what is embedded), ``kinds`` and
``vectors`` (how), ``embedding`` (shards), ``table`` (read back), ``index``, ``queries``,
``answering``.
"""
