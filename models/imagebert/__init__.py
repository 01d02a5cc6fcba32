"""ImageBERT (arXiv:2001.07966).

Reading order: ``row``, ``config`` and ``model`` (with its tasks).
"""
