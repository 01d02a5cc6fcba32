"""Provides the clients of the HTTP services, which `vlmill.client` exports.

They need the standard library only, and pyarrow for tables of regions. Reading order: ``forms``
(bodies), ``responses``, ``calls`` (what is sent for each path, and how the response is read),
``plans`` (inputs beyond a request's limits), ``connections``, ``retries`` and ``sending`` (the
clients).
"""
