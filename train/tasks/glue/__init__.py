"""GLUE has eight tasks on texts, by which InterBERT shows what is left of BERT.

Reading order: ``recipes``, ``texts``, ``task``, ``metrics``, ``evaluation``, ``submission``.
"""
