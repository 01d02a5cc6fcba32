"""This job makes image-text pairs of web archives.

Reading order: ``command`` and ``archives`` (the flags), ``job``, ``steps``, ``stages`` (of the
funnel), ``units`` and ``spool`` (what a step does, and what it leaves for the next), ``rows`` and
``pair`` (what is in it); then the steps ``mine`` with ``blocked``, ``links`` and ``parts`` (of
large archives), ``join``, ``settle`` with ``shared`` (texts of too many images), ``decode`` (the
images that pairs need), ``groups`` and ``exclude`` (images that look alike, or are held out),
``order``, ``shards`` with ``image_bytes`` or ``webdataset``, and ``fetch`` before them; then
``metrics``, ``previews``, ``report`` and ``cost``. ``rescoring`` scores a finished output's pairs
again, ``choosing`` all texts of its table of candidates.
"""
