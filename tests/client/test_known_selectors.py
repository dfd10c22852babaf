"""Tests of the selector that receives a call."""

import random

from select_service.client.selector_pool import EXCLUSION_S_MAX, EXCLUSION_S_MIN, SelectorPool

URLS = ["http://a", "http://b", "http://c"]


def selector_pool(urls=URLS):
    return SelectorPool(urls, random.Random(1))


def test_clients_of_a_scope_share_a_selector_whatever_their_list_order():
    for scope in [("m", str(i)) for i in range(50)]:
        assert selector_pool().next_selector(scope, 0.0) == selector_pool(URLS[::-1]).next_selector(
            scope, 0.0
        )


def test_scopes_spread_over_all_selectors():
    scopes = [("m", str(i)) for i in range(300)]
    homes = [selector_pool().next_selector(scope, 0.0) for scope in scopes]
    assert all(70 < homes.count(url) < 130 for url in URLS)


def test_only_the_scopes_of_a_selector_that_fails_move():
    selectors, scopes = selector_pool(), [("m", str(i)) for i in range(100)]
    before = {scope: selectors.next_selector(scope, 0.0) for scope in scopes}
    selectors.exclude("http://b", 0.0)
    after = {scope: selectors.next_selector(scope, 0.1) for scope in scopes}
    assert all(after[scope] == url for scope, url in before.items() if url != "http://b")
    assert {after[scope] for scope, url in before.items() if url == "http://b"} == {
        "http://a",
        "http://c",
    }
    assert selectors.readmit("http://b")
    assert {scope: selectors.next_selector(scope, 0.2) for scope in scopes} == before


def test_exclusions_double_up_to_a_bound():
    selectors, now, rests = selector_pool(), 0.0, []
    for _ in range(12):
        seconds = selectors.exclude("http://a", now)
        assert selectors.exclude("http://a", now + seconds / 2) is None
        rests.append(seconds)
        now += seconds
    assert EXCLUSION_S_MIN / 2 <= rests[0] <= EXCLUSION_S_MIN
    assert EXCLUSION_S_MAX / 2 <= rests[-1] <= EXCLUSION_S_MAX
    assert rests[0] < rests[3] < rests[5]


def test_when_all_are_excluded_the_earliest_end_of_exclusion_wins():
    selectors = selector_pool()
    rests = {url: selectors.exclude(url, 0.0) for url in URLS}
    assert selectors.next_selector(("m", "t"), 0.1) == min(rests, key=rests.get)


def test_the_home_of_a_lease_comes_first_while_it_serves():
    selectors = selector_pool()
    for url in URLS:
        assert selectors.next_selector(("m", "t"), 0.0, home=url) == url
    selectors.exclude("http://a", 0.0)
    assert selectors.next_selector(("m", "t"), 0.1, home="http://a") != "http://a"
