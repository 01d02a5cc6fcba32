"""This makes tables of one's own captions: ``manifest own``.

Reading order: ``command`` (the flags), then ``job`` (rows of a table become pairs and images)
and ``on_runner`` (on a Beam runner).
"""
