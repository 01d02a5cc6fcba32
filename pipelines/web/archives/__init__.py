"""Web archives become pages, images and redirects here, whatever wrote and packed them.

Reading order: ``packing`` (compressed streams and their members; ARC files),
``records`` (WARC records as they lie, damage included), ``content`` (what a record is),
``reading`` (WACZ files, too), which the jobs call, and ``index`` (which records lie where).
"""
