"""Tests of name lookups that do not block their callers."""

import socket
import threading

import pytest

from indexer.sockets import dns_resolver as names_module
from indexer.sockets.dns_resolver import ResolvedAddresses, Resolver
from tests.builders.polling import PATIENCE_S

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))
V4_TOO = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 0, 0, 0))


class LookupCallback:
    """Callback that waits for the result of a lookup."""

    def __init__(self):
        self._recovered = threading.Event()
        self.addresses = None
        self.thread = None

    def __call__(self, addresses):
        self.addresses, self.thread = addresses, threading.current_thread()
        self._recovered.set()

    def wait(self):
        assert self._recovered.wait(PATIENCE_S)
        return self.addresses


def look_up(names, host):
    told = LookupCallback()
    names.resolve(host, told)
    return told


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_address_is_resolved_at_once_without_a_thread(address):
    told = look_up(Resolver(lambda *_, **__: pytest.fail("looked up")), address)
    assert told.addresses == ResolvedAddresses((address,))
    assert told.thread is threading.current_thread()


def test_a_name_may_have_several_addresses_and_those_of_ipv4_come_first():
    told = look_up(Resolver(lambda *_, **__: [V6, V4, V4, V4_TOO]), "name")
    assert told.wait() == ResolvedAddresses(("10.0.0.1", "10.0.0.2", "fd00::1"))
    assert told.thread.daemon


def test_a_real_name_is_found():
    assert {"127.0.0.1", "::1"} & set(look_up(Resolver(), "localhost").wait().found)


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "Name or service not known"), OSError("no"), UnicodeError("no")]
)
def test_a_failed_lookup_has_its_reason(error):
    def fail(*_, **__):
        raise error

    addresses = look_up(Resolver(fail), "name").wait()
    assert addresses.found == ()
    assert addresses.error.startswith("name: ")


class Hanging:
    """Name server that answers only for `good` until its release."""

    def __init__(self):
        self.go_on = threading.Event()
        self.asked = []

    def __call__(self, host, *_, **__):
        self.asked.append(host)
        if host != "good":
            self.go_on.wait(PATIENCE_S)
        return [V4]


def test_unanswered_names_do_not_block_others():
    server = Hanging()
    names = Resolver(server)
    hanging = [look_up(names, f"bad{n}") for n in range(names_module.THREADS_MAX - 1)]
    for _ in range(3):
        assert look_up(names, "good").wait().found == ("10.0.0.1",)
    assert all(told.addresses is None for told in hanging)
    server.go_on.set()
    assert all(told.wait().found for told in hanging)


def test_concurrent_requests_share_a_lookup():
    server = Hanging()
    names = Resolver(server)
    both = [look_up(names, "bad") for _ in range(2)]
    server.go_on.set()
    assert all(told.wait().found for told in both)
    assert server.asked == ["bad"]


def test_names_that_wait_have_a_bound(monkeypatch):
    monkeypatch.setattr(names_module, "NAMES_MAX", 20)
    server = Hanging()
    names = Resolver(server)
    waiting = [look_up(names, f"bad{n}") for n in range(20)]
    assert "limit of 20 concurrent" in look_up(names, "one more").wait().error
    server.go_on.set()
    assert all(told.wait().found for told in waiting)


class NoThreads:
    """Machine that gives no more threads until its release."""

    def __init__(self, monkeypatch):
        self.there_are = False
        start = threading.Thread.start

        def refuse(thread):
            if not self.there_are:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


def test_without_a_thread_callers_get_the_error(monkeypatch):
    machine, names = NoThreads(monkeypatch), Resolver(lambda *_, **__: [V4])
    for _ in range(2 * names_module.THREADS_MAX):
        assert "no thread" in look_up(names, "name").wait().error
    machine.there_are = True
    assert look_up(names, "name").wait().found == ("10.0.0.1",)


def test_without_further_threads_the_one_there_is_looks_all_names_up(monkeypatch):
    machine, server = NoThreads(monkeypatch), Hanging()
    names = Resolver(server)
    machine.there_are = True
    waiting = [look_up(names, "bad")]
    machine.there_are = False
    waiting += [look_up(names, f"bad{n}") for n in range(5)]
    server.go_on.set()
    assert all(told.wait().found for told in waiting)


def test_a_name_for_later_waits_until_there_is_a_thread(monkeypatch):
    machine, names = NoThreads(monkeypatch), Resolver(lambda *_, **__: [V4])
    told = LookupCallback()
    names.resolve("name", told, after_s=0.001)
    names.retry_threads()
    assert told.addresses is None
    machine.there_are = True
    names.retry_threads()
    assert told.wait().found == ("10.0.0.1",)
