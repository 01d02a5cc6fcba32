"""Trains and tests models on real photographs with human-written captions.

Reading order: ``photographs.py`` (the data set's files), ``networks.py`` (weights from the package
index), ``regions.py`` (region features), then the runs.
"""
