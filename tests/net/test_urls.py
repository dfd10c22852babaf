"""Tests that URLs which no HTTP client could request are found before a request."""

import pytest

from select_service.net.urls import metrics_url_error, service_url_error


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://a:8443/x",
        "http://selector-b.ns.svc.cluster.local.:8092/x/",
        "http://10.0.0.1:1",
        "http://[::1]:8092",
        "http://my_service:80",
        "http://xn--bcher-kva.example",
    ],
)
def test_urls_of_services_are_admitted(url):
    assert service_url_error(url) is None


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://a..b:80", "`a..b` is not a host name"),
        ("http://.a", "`.a` is not a host name"),
        ("http://-a", "`-a` is not a host name"),
        ("http://a%20b", "`a%20b` is not a host name"),
        ("http://" + "a" * 64, "is not a host name"),
        ("http://" + "a." * 127 + "b", "is not a host name"),
        ("http://[::g]", "IPv6"),
        ("http://[::1]x", "`[::1]x` is not an IPv6 address"),
        ("http://x[::1]", "IPv6"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://:80", "the host is missing"),
        ("http://a:0", "port 0"),
        ("http://a:65536", "Port out of range"),
        ("ftp://a", "does not begin with http:// or https://"),
        ("a:80", "does not begin with http://"),
        ("http://u@a", "only host, port and path"),
        ("http://a/?x", "only host, port and path"),
        ("http://a/x y", "spaces"),
        ("http://b\u00fccher", "non-ASCII letters"),
    ],
)
def test_unusable_urls_are_named(url, error):
    assert error in (service_url_error(url) or "")


@pytest.mark.parametrize(
    "url",
    [
        "http://engine-0:8000/metrics",
        "https://engine-0/metrics",
        "http://[::1]:8000/metrics?name[]=vllm:num_requests_waiting&name[]=vllm:num_requests_running",
    ],
)
def test_urls_of_metrics_may_be_https_and_have_a_query(url):
    assert metrics_url_error(url) is None


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("tcp://a:80", "does not begin with http:// or https://"),
        ("http://u:p@a/metrics", "only host, port, path and query"),
        ("http://a/metrics#x", "only host, port, path and query"),
        ("http://a:0/metrics", "port 0"),
        ("http://a b/metrics", "spaces"),
        ("http:///metrics", "the host is missing"),
        ("http://a/" + "x" * 2048, "more than 2048 characters"),
        ("", "does not begin with"),
    ],
)
def test_unusable_urls_of_metrics_are_named(url, error):
    assert error in (metrics_url_error(url) or "")
