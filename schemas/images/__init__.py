"""Images become upright pixels here, by one rule for every stage.

Reading order: ``formats`` (what a file is by its first bytes), ``orientation`` (how an image is
stored in its file, and turning it and its boxes), ``decode`` (bytes to upright pixels, within
bounds) and ``hashes`` (which images look similar).
"""
