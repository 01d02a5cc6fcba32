"""This job writes data sets as tables of pairs and images.

Reading order: ``job``, ``rows`` (tables in other formats), ``own`` (the user's own captions),
``pictures`` and ``report``.
"""
