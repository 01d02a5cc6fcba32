"""Images become upright pixels here, by one rule for every stage.

Reading order: ``formats`` (what a file is by its first bytes), ``structure`` (counts the parts of a
file, which decide what decoding costs), ``orientation`` (how an image is stored in its file, and
turning it and its boxes), ``decode`` (bytes to upright pixels, within bounds) and ``hashes`` (which
images look similar).
"""
