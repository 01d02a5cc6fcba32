"""A page's pictures and texts are chosen here, once it is known which pictures are at hand.

Reading order: ``joined`` (what comes in and goes out), ``dominance`` (which pictures are content),
``survey`` (what a site repeats, and where its captions stand), ``candidates`` (the texts near a
picture), ``likeness`` (words that texts share), ``features``, ``weights`` and ``choose``.
"""
