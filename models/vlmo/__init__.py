"""VLMo (arXiv:2111.02358).

Reading order: ``row``, ``config``, ``encoder``, ``model``, ``stages`` (from one stage to the next),
``tasks`` and ``published``.
"""
