"""GLUE has eight tasks on texts, by which InterBERT shows what is left of BERT.

Reading order: ``row``, ``recipes``, ``task``, ``metrics``, ``evaluation``,
``submission``.
"""
