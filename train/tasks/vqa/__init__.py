"""VQA answers questions about images.

Reading order: ``row``, ``task`` (input, head, loss, metric), ``answers`` (the list that a head
tells apart), ``recipes`` (the papers' runs), ``metrics`` (the official accuracy and the soft
score), and ``evaluation``.
"""
