"""This job makes image-text pairs of web archives.

Reading order: ``command`` (the flags), ``archives``, ``job``, ``steps_pages`` (archives to
candidates), ``steps_pairs`` (candidates to pairs), ``pair`` (what a candidate and a pair are),
``tables`` and ``report``.
"""
