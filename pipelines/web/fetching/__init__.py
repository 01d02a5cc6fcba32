"""Fetches URLs: hosts in buckets, each host at its own pace, everything journalled.

Reading order: ``flags`` and ``politeness`` (the numbers), ``lines`` and ``hosts`` (hosts and
buckets), ``database``, ``entries`` and ``journal`` (the URLs to fetch and their outcomes),
``outbox`` (between buckets), ``warc`` (writing archives), ``mirror`` (in a store), ``turns`` (a
host), ``pages`` and ``answers`` (the results of a response), ``fetcher`` (the loop), ``work`` (a
bucket); ``stages`` and ``tables`` (the outcome of every URL), ``rounds`` (the steps).
"""
