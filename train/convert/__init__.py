"""Published checkpoints come in and go out here.

Reading order: ``command`` (arguments), ``conversion``, ``published`` (their files) and ``origins``.
"""
