"""This job finds the images that look most alike to a detector: ViLBERT's hard negatives.

Reading order: ``command`` (the flags), ``job``, ``means`` (a vector for each image), ``splits``
(who is compared with whom), ``search`` (exact, by FAISS), then ``published``, which reads the list
that ViLBERT's authors gave away, ``report`` and ``cost``.
"""
