"""Converts the user's own captions to tables: ``manifest own``.

Reading order: ``command`` (the flags), then ``job`` (rows of a table become pairs and images) and
``on_runner`` (on a Beam runner).
"""
