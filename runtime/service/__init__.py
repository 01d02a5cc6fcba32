"""What every service shares: one process accepts, queues and answers, others compute.

Reading order: ``settings``, ``refused`` (what is answered with 4xx and 503), ``queue``,
``workers``, ``metrics``, ``logs``, ``guard`` (limits of every request), ``bodies``, ``plain``
(rows as JSON), ``fetching`` (images named by URLs), ``shell`` (the application), ``server``.
``client`` is for those who ask. All but ``settings``, ``refused`` and ``client`` need the extra
that is called as this folder.
"""
