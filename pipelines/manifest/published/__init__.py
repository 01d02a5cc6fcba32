"""This makes tables of published data sets: ``manifest DATASET``.

Reading order: ``command`` (the flags), ``settings`` (what decides the output), ``parts`` (entries
become shards), ``images``; ``fetch`` and ``fetched`` (downloads), ``placeholders`` (what dead
links give), ``splits`` and ``overlaps`` (what is kept out), ``counts`` (beside the published ones),
``report`` and ``drawn`` (its examples). What each data set is stands in ``manifest/sets``.
"""
