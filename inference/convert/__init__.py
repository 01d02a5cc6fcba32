"""Published checkpoints come in and go out here.

Reading order: ``command`` (the flags), ``arguments`` (what is refused at once), ``named`` (files
of checkpoints that are given by name), ``conversion``, ``backbone`` (of VL-BERT's region network)
and ``origins``.
"""
