"""Creates image-text pairs from web archives, WAT files and tables.

Reading order: ``__main__``, ``archives`` and ``rules_file`` (the flags), ``sources`` (the files
with pages) and ``table_rows`` (their rows), ``job``, ``steps``, ``stages`` (of the funnel),
``units`` and ``spool`` (the work of a step, and its output for the next step), ``rows`` and
``pair`` (the contents of spools); ``merge`` (many spools into one); then the steps ``mine`` with
``page_reader``, ``blocked`` and ``links``, ``join``, ``decode`` (the images that pairs need,
without texts of too many), ``groups`` and ``exclude`` (similar and excluded images), ``order``,
``shards`` with ``image_bytes`` or ``webdataset``, and ``fetch`` before them; then ``metrics``,
``report`` and ``cost``. ``rescoring`` scores the pairs of a finished output again, ``choosing`` all
texts of its table of candidates.
"""
