"""A page goes from an archive's record to its images and the texts beside them.

Reading order: ``markup`` (bytes to a parsed page), ``walk`` (its texts and images
in order), ``addresses``, ``context``, ``tables`` and ``references`` (the texts of an image),
``metadata``, ``page``; then ``images``.
"""
