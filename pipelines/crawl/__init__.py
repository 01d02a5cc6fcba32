"""Downloads pages and images into web archives, at the pace that their hosts allow.

Reading order: ``__main__`` (the flags), ``lists`` (reads URLs and tables), ``job`` with its cost
and its report. For ``--input``: ``rows`` finds the contents of rows, ``pairs`` writes their images,
after ``resizing``. ``pipelines/web/fetching`` downloads, and writes the tables of outcomes.
"""
