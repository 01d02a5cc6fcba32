"""Reads images from the user's arguments to the network's input.

Reading order: ``discovery`` (which files are images), ``tar`` (which members are), ``plan`` (which
images, in which order), ``given_boxes``, ``choosing`` (images of pairs, or with boxes),
``reader`` (their bytes), ``decode`` (bytes to upright pixels) and ``resize`` (pixels to the input).
"""
