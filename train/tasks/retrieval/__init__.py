"""Retrieval finds pictures by texts, and texts by pictures.

Reading order: ``command`` (arguments), ``evaluation``, ``job``, ``candidates`` (what is ranked),
``inputs``, ``matching`` (scores of pairs), ``vectors`` (scores of vectors), ``metrics``, ``found``,
``checks``, ``report`` and ``losses``.
"""
