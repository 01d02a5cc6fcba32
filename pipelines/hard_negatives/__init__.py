"""This job finds hard negatives of pairs.

Reading order: ``command`` (the flags), ``rules``, ``job``, then ``tfidf``, which finds similar
captions.
"""
