"""What fetches: hosts in buckets, each host at its own pace, everything journalled.

Reading order: ``manners`` (the numbers), ``places`` (hosts and buckets), ``journal`` (what is to be
fetched and what came of it), ``warc``, ``turns`` (a host), ``pages`` and ``answers`` (what an
answer comes to), ``fetcher`` (the loop), ``work`` (a bucket) and ``rounds`` (Beam).
"""
