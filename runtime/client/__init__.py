"""Provides the clients of the HTTP services, which `vlmill.client` exports.

They need the standard library only, and pyarrow for tables of regions. Reading order: ``forms``
(bodies), ``responses``, ``calls`` (what is sent for each path, how the response is read, and inputs
beyond a request's limits), ``connections`` (and retries) and ``sending`` (the clients).
"""
