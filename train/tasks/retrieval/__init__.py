"""Retrieval finds images by texts, and texts by images.

It is learnt in ``base`` (what it is), ``task`` (texts and images read together; candidates
and losses), ``dual`` (read apart), ``held_out`` (how it is followed),
``settings``, ``recipes``, ``vlmo_recipes`` and ``row``.

It is ranked in ``command`` (arguments), ``evaluation``, ``job``, ``candidates`` (what is ranked),
``inputs``, ``matching`` (scores of pairs), ``score_store`` (keeps them through a kill),
``vectors`` (scores of vectors), ``first_stage`` (candidates of ``--rerank``), ``metrics``,
``examples``, ``checks`` and ``report``.
"""
