"""Finds the most similar images by region features: ViLBERT's hard negatives.

Reading order: ``__main__`` (the flags), ``job``, ``means`` (a vector for each image), ``splits``
(groups of images to compare), ``search`` (exact, with FAISS), then ``published`` (reads the list of
ViLBERT's authors) and ``report``.
"""
