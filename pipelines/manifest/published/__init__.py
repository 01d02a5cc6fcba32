"""Converts published data sets to tables: ``manifest DATASET``.

Reading order: ``command`` (the flags), ``settings`` (which determine the output), ``parts``
(entries become shards), ``on_runner`` (on a Beam runner), ``images``; ``fetch`` and ``downloads``,
``placeholders`` (images that servers send for dead links), ``splits`` and ``overlaps``
(exclusions), ``counts`` (compared with the published ones), ``report``. Each data set is defined in
``manifest/sets``.
"""
