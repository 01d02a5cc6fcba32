"""This is ImageBERT (arXiv:2001.07966).

Reading order: ``config``, ``model``, ``tasks``.
"""
