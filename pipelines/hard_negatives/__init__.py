"""This job finds hard negatives of pairs.

Reading order: ``job``, then ``tfidf``, which finds similar captions.
"""
