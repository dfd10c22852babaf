"""Where this process may connect to, judged as values, without any I/O.

What counts is the address that is connected to.  One of IPv6 that stands for one of IPv4 is judged
as that one.  Whatever is set, nothing is connected to that is no place of an engine or a replica
and often a place of secrets: link-local addresses and others at which clouds tell machines their
credentials.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from indexer.endpoints import ANY_HOST, tcp_host

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

FLAG, LOOPBACK_FLAG = "--connect-to", "--connect-to-loopback"
LOOPBACK_NAME = "localhost"
LOOPBACK: tuple[Network, ...] = ip_network("127.0.0.0/8"), ip_network("::1/128")
NEVER: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "what programs bind to, not where they can be reached"),
        ("169.254.0.0/16", "link-local, where clouds keep credentials"),
        ("100.100.100.200/32", "the metadata service of a cloud"),  # Alibaba
        ("168.63.129.16/32", "the metadata service of a cloud"),  # Azure
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("::/128", "what programs bind to, not where they can be reached"),
        ("::/96", "an obsolete form of an IPv4 address"),  # RFC 4291, 2.5.5.1
        ("fe80::/10", "link-local, where clouds keep credentials"),
        ("fd00:ec2::/32", "the metadata service of a cloud"),  # AWS
        ("fd20:ce::254/128", "the metadata service of a cloud"),  # Google
        ("fd00:c1::a9fe:a9fe/128", "the metadata service of a cloud"),  # Oracle
        ("ff00::/8", "multicast"),
        ("2001::/32", "a tunnel (Teredo)"),
        ("2002::/16", "a tunnel (6to4)"),
    )
)
"""Networks to which nothing is ever connected, the first that fits says why."""

_MAPPED: tuple[Network, ...] = ip_network("::ffff:0:0/96"), ip_network("::ffff:0:0:0/96")
"""IPv4 in the form of IPv6, RFC 4291 and RFC 2765."""
_NAT64 = ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
"""RFC 8215: whose translators may have any prefix in it."""
_SHORTER_PREFIXES = 48, 56, 64
"""Bits of a prefix that leaves room behind the address: RFC 6052, 2.2."""
SHOWN_MAX = 8
"""Networks and names that a refusal lists."""
KNOWN_MAX = 8192
"""Texts of which it is remembered which address they are."""


class _Range(NamedTuple):
    """A network as numbers, which are compared twenty times as fast."""

    version: int
    first: int
    last: int
    what: str


def _ranges(networks: Iterable[tuple[Network, str]]) -> tuple[_Range, ...]:
    return tuple(
        _Range(each.version, int(each.network_address), int(each.broadcast_address), what)
        for each, what in networks
    )


_NEVER = _ranges(NEVER)
_HERE = _ranges((each, "") for each in LOOPBACK)
_OF_IPV4 = _ranges((each, "") for each in _MAPPED)
_TRANSLATED = _ranges([(_NAT64, "")])
_LOCALLY_TRANSLATED = _ranges([(_LOCAL_NAT64, "")])


@dataclass(frozen=True)
class Destinations:
    """networks, hosts: may be connected to; none of either: everything that is not refused anyway.
    A host with a dot before it stands for all names that end so.
    loopback: may the machine itself be connected to?
    """

    networks: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    loopback: bool = True

    def refusal(self, host: str, address: str | None) -> str | None:
        """Why nothing may be connected to there; None: it may be.

        host: as it was asked for, perhaps the address itself
        address: numeric; None for ipc and inproc, which stay on this machine
        """
        if address is None:
            return None if self.loopback else f"{host} stays on this machine; {_allow_loopback()}"
        why = self._of_address(host, _read(address))
        if why is None:
            return None
        return f"{address} {why}" if host == address else f"{host} leads to {address}, which {why}"

    def refusal_of_host(self, host: str) -> str | None:
        """What can be said before a name is looked up."""
        if _read(host) is not None:
            return self.refusal(host, host)
        name = _plain(host)
        if not self.loopback and (name == LOOPBACK_NAME or name.endswith(f".{LOOPBACK_NAME}")):
            return f"{host} is this machine; {_allow_loopback()}"
        if self.hosts and not self.networks and not self._names(host):
            return f"{host} {self._not_listed()}"
        return None

    def refusal_of_url(self, url: str) -> str | None:
        """The same of the host of a URL that is well formed."""
        host = urlsplit(url).hostname
        return self.refusal_of_host(host) if host else None

    def refusal_of_endpoint(self, endpoint: str) -> str | None:
        """The same of a ZMQ endpoint that is well formed."""
        host = tcp_host(endpoint)
        if host is None:
            return self.refusal(endpoint, None)
        return None if host == ANY_HOST else self.refusal_of_host(host)

    def _of_address(self, host: str, address: Address | None) -> str | None:
        if address is None:
            return "is no address"
        meant = list(_meant(address))
        for each in (address, *meant):
            if _is_here(each):
                if not self.loopback:
                    return f"is this machine; {_allow_loopback()}"
            elif (never := _holding(_NEVER, each)) is not None:
                return f"is {never.what}: nothing is connected to there"
        if not self.networks and not self.hosts:
            return None
        if self._names(host) or self._lists(address) or all(map(self._allows, meant)):
            return None
        return self._not_listed()

    def _allows(self, address: Address) -> bool:
        """Of one that is not refused anyway."""
        return _is_here(address) or self._lists(address)

    def _lists(self, address: Address) -> bool:
        return _holding(self._listed, address) is not None

    @cached_property
    def _listed(self) -> tuple[_Range, ...]:
        return _ranges((each, "") for each in self.networks)

    def _names(self, host: str) -> bool:
        name = _plain(host)
        return any(
            name.endswith(each) if each.startswith(".") else name == each for each in self.hosts
        )

    def _not_listed(self) -> str:
        listed = [*map(str, self.networks), *self.hosts]
        more = f" and {len(listed) - SHOWN_MAX} more" if len(listed) > SHOWN_MAX else ""
        return f"is not among {FLAG}: {', '.join(listed[:SHOWN_MAX])}{more}"


def network_of(text: str) -> Network:
    """One that may be listed.  Raises ValueError."""
    network = ip_network(text)
    if any(_within(network, each) for each in LOOPBACK):
        raise ValueError(f"the machine itself is allowed with {LOOPBACK_FLAG}")
    for refused, what in NEVER:
        if _within(network, refused):
            raise ValueError(f"it is {what}, to which nothing is ever connected")
    if any(_within(network, each) for each in _MAPPED):
        raise ValueError("addresses of IPv4 are judged as such: write them so")
    return network


def _within(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


def _allow_loopback() -> str:
    return f"{LOOPBACK_FLAG} allows that"


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")


def _holding(ranges: Iterable[_Range], address: Address) -> _Range | None:
    """The first range that the address is in."""
    version, number = address.version, int(address)
    for each in ranges:
        if each.version == version and each.first <= number <= each.last:
            return each
    return None


def _is_here(address: Address) -> bool:
    return _holding(_HERE, address) is not None


@lru_cache(KNOWN_MAX)
def _read(text: str) -> Address | None:
    """Without its zone, and one of IPv4 as that, however written; None for what is no address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return IPv4Address(int(address) & 0xFFFFFFFF) if _holding(_OF_IPV4, address) else address


def _meant(address: Address) -> Iterator[Address]:
    """Where packets to it come out, or may: each must be allowed."""
    if isinstance(address, IPv4Address):
        yield address
        return
    number = int(address)
    if _holding(_LOCALLY_TRANSLATED, address):
        yield from _translated(number)
    elif _holding(_TRANSLATED, address):
        yield IPv4Address(number & 0xFFFFFFFF)
    else:
        yield address


def _translated(number: int) -> Iterator[Address]:
    """What translators would take from an address of IPv6, by the lengths of their prefixes.

    In front of shorter ones bits 64 to 71 are left out, and what stands behind is not looked at.
    0.x.x.x and x.0.0.0 are nobody, and what zeros of another length look like.
    """
    without_gap = number >> 64 << 56 | number & (1 << 56) - 1
    shorter = (without_gap >> (120 - bits - 32) & 0xFFFFFFFF for bits in _SHORTER_PREFIXES)
    found = [*shorter, number & 0xFFFFFFFF]
    somebody = [each for each in found if each >> 24 and each & 0xFFFFFF]
    yield from map(IPv4Address, somebody or found[-1:])
