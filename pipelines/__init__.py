"""Runs jobs over pure functions: ``python -m vlmill.pipelines.JOB --help``.

Each job is a folder with a ``__main__``, which has its flags and nothing that a worker of Beam
imports. Several jobs share ``web`` (archives, pages, texts, the choice of pairs, downloads) and
``filters`` (models that judge images and pairs). All jobs are steps of ``vlmill.runtime.units``.
``rules`` defines every threshold of the web-pairs job, ``judging`` the scores of a filter of
images. Read ``rules``, ``web_pairs/job`` and ``web_pairs/steps``.
"""
