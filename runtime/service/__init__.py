"""What every service shares: one process accepts, queues and answers, others compute.

Reading order: ``settings``, ``refusals`` (what is answered with 4xx and 503), ``queue``,
``overload`` (how long what waits will take), ``workers``, ``metrics``, ``logs``, ``connections``,
``guard`` (limits of every request), ``bodies``, ``json_rows`` (rows as JSON),
``fetching`` (images named by URLs), ``shell`` (the application), ``protocol`` and
``server``.
``client`` is for programs that send requests. All but ``settings``, ``refusals`` and ``client``
need the extra that is called as this folder.
"""
