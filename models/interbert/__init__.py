"""This is InterBERT (arXiv:2003.13198).

Reading order: ``model``, ``tasks``, ``published``.
"""
