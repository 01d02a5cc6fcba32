"""GLUE has eight tasks on texts, with which InterBERT measures how much of BERT remains.

Reading order: ``row``, ``settings``, ``task``, ``metrics``, ``evaluation``.
"""
