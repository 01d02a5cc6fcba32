"""Fetches URLs: hosts in buckets, each host at its own pace, everything journalled.

Reading order: ``flags`` and ``politeness`` (the numbers), ``lines`` and ``hosts`` (hosts and
buckets), ``database``, ``entries`` and ``journal`` (the URLs to fetch and their outcomes),
``outbox`` and ``sent`` (between buckets), ``mirror`` (a bucket in an object store), ``warc``
(writing archives), ``turns`` (a host), ``pages`` and ``answers`` (the results of a response),
``fetcher`` (the loop), ``work`` (a bucket), ``rounds`` (of all buckets); then ``stages`` and
``tables`` (the outcome of every URL).
"""
