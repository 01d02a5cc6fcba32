"""A page's images and texts are chosen here, once it is known which images are available.

Reading order: ``joined_page`` (what comes in and goes out), ``dominance`` (which images are
content), ``survey`` (what a site repeats, and where its captions are), ``candidates`` (the texts
near an image), ``likeness`` (words that texts share), ``features``, ``weights`` and ``choose``.
"""
