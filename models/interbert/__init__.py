"""InterBERT (arXiv:2003.13198).

Reading order: ``row``, ``config``, ``model``, ``tasks``, ``from_bert``, ``published``.
"""
