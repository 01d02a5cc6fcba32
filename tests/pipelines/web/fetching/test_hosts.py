"""Hosts and origins of URLs, and their buckets."""

import pytest

from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host, get_origin


@pytest.mark.parametrize(
    ("url", "origin", "host"),
    [
        ("http://a.org/x", "http://a.org", "a.org"),
        ("https://a.org:8443/x?y=/z", "https://a.org:8443", "a.org:8443"),
        ("http://a.org?x=1", "http://a.org", "a.org"),
        ("http://[::1]:80/", "http://[::1]:80", "[::1]:80"),
    ],
)
def test_host_and_origin(url: str, origin: str, host: str) -> None:
    assert get_origin(url) == origin
    assert get_host(url) == host


def test_buckets_do_not_depend_on_port_or_www() -> None:
    hosts = ("a.org", "www.a.org", "a.org:8080", "www.a.org:81")
    assert len({assign_bucket(host, 1_000) for host in hosts}) == 1


def test_buckets_are_spread() -> None:
    buckets = [assign_bucket(f"{number}.org", 4) for number in range(400)]
    assert all(70 < buckets.count(bucket) < 130 for bucket in range(4))


def test_an_address_of_ip_6_has_a_bucket() -> None:
    assert assign_bucket("[::1]", 7) == assign_bucket("[::1]:8080", 7)
