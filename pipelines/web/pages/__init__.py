"""A page goes from an archive's record to its images and the texts beside them.

Reading order: ``markup`` (bytes to a parsed page), ``walk`` and ``marks`` (its texts and images
in order), ``addresses``, ``context``, ``tables``, ``labels`` and ``references`` (the texts of an
image), ``metadata``, ``page``; then ``images``.
"""
