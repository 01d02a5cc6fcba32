"""A page goes from an archive's record to its pictures and the texts beside them.

Reading order: ``markup`` (bytes to a parsed page), ``walk`` (its texts and pictures in
order), ``context`` (the texts beside a picture), ``page``, ``urls``, ``dominant`` and
``pictures``.
"""
