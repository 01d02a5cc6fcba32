"""Writes vectors of images, texts and pairs, and finds the nearest vectors.

Reading order: ``command`` (arguments), ``embedding_inputs`` (tables and modes), ``vectors``
(computation), ``embedding`` (shards), ``pair_scores``, ``table`` (reading), ``index`` (searching),
``building``, ``items`` (similar items), ``indexing`` (an index as the options request it; rows are
added and removed), ``queries``, ``answering``, ``reranking``.
"""
