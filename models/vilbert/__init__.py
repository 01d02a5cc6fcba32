"""ViLBERT (arXiv:1908.02265) with its single-stream baseline.

Reading order: ``row``, ``config``, ``model``, ``single_stream``, ``tasks`` and ``published``.
"""
