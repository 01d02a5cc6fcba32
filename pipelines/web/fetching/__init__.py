"""What fetches: hosts in buckets, each host at its own pace, everything journalled.

Reading order: ``flags`` and ``manners`` (the numbers), ``lines`` and ``places`` (hosts and
buckets), ``database``, ``entries`` and ``journal`` (what is to be fetched and what came of it),
``outbox`` (between buckets), ``warc`` (written), ``turns`` (a host), ``pages`` and ``answers``
(what an answer comes to), ``fetcher`` (the loop), ``work`` (a bucket), ``rounds`` and ``on_beam``;
then ``stages`` and ``tables`` (what came of every URL).
"""
