"""Provides the parts that every service shares: one process accepts requests, others compute.

Reading order: ``settings``, ``refusals`` (responses with 4xx and 503), ``queue``, ``overload``
(estimates waiting times), ``workers``, ``metrics``, ``logs``, ``connections``, ``guard`` (limits of
every request), ``bodies`` (and images named by URLs), ``json_rows`` (rows as JSON), ``openapi``,
``page``, ``shell`` (the application), ``protocol`` and ``server``. All but ``settings`` and
``refusals`` need the extra with the name of this package.
"""
