"""The fetcher: hosts in buckets, each host at its own pace, everything journalled.

Reading order: ``flags`` and ``politeness`` (the numbers), ``lines`` and ``hosts`` (hosts and
buckets), ``database``, ``entries`` and ``journal`` (what is to be fetched and what came of it),
``outbox`` (between buckets), ``warc`` (written), ``turns`` (a host), ``pages`` and ``answers``
(what a response leads to), ``fetcher`` (the loop), ``work`` (a bucket), ``rounds`` (of all);
then ``stages`` and ``tables`` (the outcome of every URL).
"""
