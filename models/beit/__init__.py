"""BEiT, with the image tokenizers whose tokens it learns to predict.

Reading order: ``row``, ``config``, ``model``, ``dvae`` and ``published``.
"""
