"""Retrieval finds pictures by texts, and texts by pictures.

It is learnt in ``task`` (texts and pictures read together), ``drawing`` (what a pair is told from),
``losses``, ``dual`` (read apart), ``held_out`` (how it is followed) and ``recipes``.

It is ranked in ``command`` (arguments), ``evaluation``, ``job``, ``candidates`` (what is ranked),
``inputs``, ``matching`` (scores of pairs), ``kept`` (through a kill), ``vectors`` (scores of
vectors), ``first_stage`` (candidates of ``--rerank``), ``metrics``, ``examples``, ``checks`` and
``report``.
"""
