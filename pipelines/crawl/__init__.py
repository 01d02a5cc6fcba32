"""This job fetches pages and images into web archives, at the pace that their hosts allow.

Reading order: ``command`` (the flags), ``lists`` (URLs come in), ``job`` (with its
report and cost). How it is fetched, and the tables of what came of it, stand in
``pipelines/web/fetching``.
"""
