"""ImageBERT (arXiv:2001.07966).

Reading order: ``row``, ``config``, ``model``, ``tasks`` and ``from_bert``.
"""
