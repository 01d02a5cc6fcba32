"""VQA answers questions about images.

Reading order: ``row``, ``task`` (input, head, loss, metric, the list of answers),
``recipes`` (the papers' runs), ``metrics`` (the official accuracy and the soft
score), and ``evaluation``.
"""
