"""This is InterBERT (arXiv:2003.13198).

Reading order: ``config``, ``model``, ``tasks``, ``published``.
"""
