"""What a crawl of a list will take: no host is asked faster than its manners allow."""

from collections import Counter
from collections.abc import Iterable

from vlmill.pipelines.web.fetching.hosts import get_host
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.runtime.console.cost import Estimate
from vlmill.runtime.units.funnel import Drop

REQUESTS_FIRST = 2  # of each host: robots.txt and tdmrep.json


def estimate_cost(lines: Iterable[Line], policy: PolitenessPolicy, workers: int) -> Estimate:
    """Returns the cost of the URLs of a list. Memory: some 150 bytes a host."""
    hosts, bad = Counter[str](), 0
    for _, entry in lines:
        if isinstance(entry, Drop):
            bad += 1
        else:
            hosts[get_host(entry.url)] += 1
    parallel_requests = workers * policy.hosts_at_once * policy.per_host
    longest = max(hosts.values(), default=0) / policy.per_host
    all_of_them = (hosts.total() + REQUESTS_FIRST * len(hosts)) / parallel_requests
    urls = f"{hosts.total():,} URLs on {len(hosts):,} hosts"
    return Estimate(
        inputs={"--urls": f"{urls}, {bad:,} lines that are no URL" if bad else urls},
        seconds=policy.delay_s * max(longest, all_of_them),
        note="pauses alone: answers take longer, robots.txt may ask for more, what pages lead to "
        "is fetched besides, and what comes again is not; bytes are those of the answers",
    )
