"""This job finds hard negatives of pairs.

Reading order: ``command`` (the flags), ``job``, then ``tfidf``, which finds similar captions.
"""
