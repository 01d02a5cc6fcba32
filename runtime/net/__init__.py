"""A client for servers of the web that reaches no address inside, and what site owners forbid.

Reading order: ``urls``, ``exchange``, ``addresses``, ``responses``, ``names``, ``transfer``,
``client``, ``remote_file`` (a file that is read in parts), ``flags``; ``robots`` and ``opt_outs``
are pure functions. Nothing here needs Beam.
"""
