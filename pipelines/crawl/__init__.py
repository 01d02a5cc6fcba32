"""Downloads pages and images into web archives, at the pace that their hosts allow.

Reading order: ``command`` (the flags), ``lists`` (reads URLs), ``job`` with its cost and its
``report``. For ``--input``: ``table_input`` reads rows, ``pairs`` writes their images, after
``resizing``. ``pipelines/web/fetching`` downloads, and writes the tables of outcomes.
"""
