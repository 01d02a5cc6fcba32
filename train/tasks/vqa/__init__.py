"""VQA answers questions about images.

Reading order: ``row``, ``task`` (input, head, loss, metric, the list of answers),
``settings`` (its fields), ``metrics`` (the official accuracy and the soft
score), ``evaluation`` (and the servers' files).
"""
