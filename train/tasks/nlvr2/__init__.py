"""NLVR2 tells whether a statement is true of two pictures.

Reading order: ``recipes``, ``task``, ``metrics``, ``evaluation``, ``submission``.
"""
