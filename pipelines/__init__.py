"""These are Beam jobs over pure functions: ``python -m vlmill.pipelines.JOB --help``.

Each job is a folder with a ``__main__``; what several share lies below them: ``archives``,
``pages``, ``choice``, ``texts`` and ``filters`` (from web archives to pairs), ``fetching``,
``counting`` (what came in, went on, was dropped) and ``launch`` (on this machine, or of Beam's
runners). ``rules`` has every threshold of the job of web pairs. Read ``rules``,
``web_pairs/job`` and ``web_pairs/steps``.
"""
