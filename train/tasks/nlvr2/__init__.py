"""NLVR2 predicts whether a statement is true of two images.

Reading order: ``row``, ``settings``, ``task``.
"""
