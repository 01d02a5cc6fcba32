"""The web's servers: a client that reaches none inside, and what site owners forbid. No Beam.

Reading order: ``urls``, ``exchange``, ``addresses``, ``responses``, ``names``, ``transfer``,
``client``, ``ranged`` (a file that is read in parts); ``robots`` and ``opt_outs`` stand beside them
and are pure.
"""
