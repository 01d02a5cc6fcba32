"""Decodes images to upright pixels by one rule for every stage.

Reading order: ``formats`` (recognises a file by its first bytes), ``structure`` (counts the parts
of a file, which determine the cost of decoding), ``headers`` (reads sizes without a decoder),
``orientation`` (turns sizes and boxes), ``decode`` (bytes to upright pixels, within
limits) and ``hashes`` (finds images that look similar). ``plugins`` loads all decoders.
"""
