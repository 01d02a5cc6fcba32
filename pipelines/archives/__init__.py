"""Web archives become pages, pictures and redirects here, whatever wrote and packed them.

Reading order: ``packing`` (compressed streams and their members), ``arc`` and ``zips`` (the other
formats), ``stored`` (records as they lie, damage included), ``http`` (bodies), ``content`` (what a
record is) and ``reading``, which the jobs call.
"""
