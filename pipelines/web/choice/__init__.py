"""Chooses a page's images and texts, once it is known which images are available.

Reading order: ``joined_page`` (input and output), ``dominance`` (which images are content),
``site_content`` (repeated content of a site, and where its captions are), ``candidates`` (the texts
near an image), ``likeness`` (words that texts share), and ``choose``.
"""
