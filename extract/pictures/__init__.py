"""Pictures go from what the user names to the network's input.

Reading order: ``plan`` (which pictures, in which order), ``named`` (other names of theirs),
``reader`` (their bytes), ``tar``, ``given_boxes``, ``decode`` (bytes to upright pixels) and
``resize`` (pixels to the input).
"""
