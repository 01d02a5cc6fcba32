"""Provides an HTTP client that never connects to internal addresses, and the opt-outs of site
owners.

Reading order: ``urls``, ``exchange``, ``addresses``, ``responses``, ``names``, ``proxies``,
``transfer``, ``client``, ``remote_file`` (a file that is read in parts), ``flags``; ``robots`` and
``opt_outs`` are pure functions. Nothing here needs Beam.
"""
