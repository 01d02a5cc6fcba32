"""Retrieval finds images by texts, and texts by images.

Reading order of training: ``base`` (common parts, and validation), ``task`` (texts and images read
together; candidates and losses), ``step_pairs`` (all pairs of a step), ``dual`` (read separately),
``row`` (chooses between these) and ``settings``.

Reading order of ranking: ``evaluation``, ``job``, ``candidates`` (the ranked texts and images),
``inputs``, ``matching`` (scores of pairs), ``score_store`` (keeps them through a kill), ``vectors``
(scores of vectors), ``first_stage`` (candidates of ``--rerank``), ``metrics``, ``examples``,
``checks`` and ``report``.
"""
