"""A job is loaded (``loading``) and done on this machine's cores (``local``), or started with the
``options`` of a Beam runner, which shows its ``metrics``.
"""
