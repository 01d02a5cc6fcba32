"""This job fetches pages and pictures into web archives, at the pace that their hosts allow.

Reading order: ``command`` (the flags), ``lists`` (URLs come in), ``job``, ``tables`` (what came of
them), ``report``. How it is fetched stands in ``pipelines/fetching``.
"""
