"""Downloads pages and images into web archives, at the pace that their hosts allow.

Reading order: ``command`` (the flags), ``lists`` (reads URLs), ``job`` (with its report and cost).
``pipelines/web/fetching`` downloads, and writes the tables of outcomes.
"""
