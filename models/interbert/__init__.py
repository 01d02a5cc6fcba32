"""InterBERT (arXiv:2003.13198).

Reading order: ``row``, ``config``, ``model`` (with its tasks) and ``published``.
"""
