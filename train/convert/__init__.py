"""Published checkpoints come in and go out here.

Reading order: ``command`` (the flags), ``arguments`` (what is refused at once), ``conversion``,
``published`` (their files) and ``origins``.
"""
