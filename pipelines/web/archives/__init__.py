"""Reads pages, images and redirects from web archives of any writer and compression.

Reading order: ``packing`` (compressed streams and their members; ARC files),
``records`` (stored WARC records, including damaged ones), ``content`` (the type of a record),
``reading`` (the functions for jobs, WACZ files included), ``wat`` (the links of pages as JSON), and
``index`` (record locations).
"""
