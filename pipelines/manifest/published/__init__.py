"""This makes tables of published data sets: ``manifest DATASET``.

Reading order: ``command`` (the flags), ``settings`` (what decides the output), ``parts`` (entries
become shards), ``on_runner`` (on a Beam runner), ``images``; ``fetch`` and ``downloads``,
``placeholders`` (images that servers send for dead links), ``splits`` and ``overlaps`` (what is
kept out), ``counts`` (compared with the published ones), ``report``.
Each data set is defined in ``manifest/sets``.
"""
