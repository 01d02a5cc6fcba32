"""Images become upright pixels here, by one rule for every stage.

Reading order: ``formats`` (what a file is by its first bytes), ``orientation`` (how an image lies
in its file, and turning it and its boxes), ``decode`` (bytes to upright pixels, within bounds),
``hashes`` (which images look alike) and ``drawing`` (boxes on an image).
"""
