"""Published checkpoints come in and go out here.

Reading order: ``command``, ``published`` (their files) and ``origins``.
"""
