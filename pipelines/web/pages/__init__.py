"""Extracts images, and the texts near them, from an archived page.

Reading order: ``markup`` (bytes to a parsed page), ``walk`` (its texts and images in order) and
``blocks`` (their types), ``addresses``, ``context`` (the texts of an image), ``metadata``,
``page``; ``described`` (pages without markup); then ``images``.
"""
