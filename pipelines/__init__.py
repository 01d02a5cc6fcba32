"""These are jobs over pure functions: ``python -m vlmill.pipelines.JOB --help``.

Each job is a folder with a ``__main__``. Several jobs share ``web`` (archives, pages, texts, the
choice of pairs, downloads), ``filters`` (models that judge images and pairs), ``counting`` (how
many records each stage takes, passes on and drops) and ``launch`` (on this machine or on Beam's
runners). ``rules`` has every threshold of the job of web pairs. Read ``rules``, ``web_pairs/job``
and ``web_pairs/steps``.
"""
