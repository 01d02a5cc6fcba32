"""Real photographs with captions that people wrote: features, runs and records.

Reading order: ``photographs.py`` (the data set's files), ``networks.py`` (weights from the package
index), ``regions.py`` (region features), then the runs.
"""
