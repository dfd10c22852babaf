"""Egress policy: the addresses this process may connect to, checked without I/O.

The policy checks the address that is connected to.  An IPv4-mapped IPv6 address is checked as its
IPv4 address.  Whatever is configured, some addresses are always refused because no engine or
replica uses them and they often expose secrets: link-local addresses and other addresses where
clouds publish credentials of machines.
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

from indexer.zmq_endpoints import ANY_HOST, tcp_host

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

FLAG, LOOPBACK_FLAG = "--connect-to", "--connect-to-loopback"
LOOPBACK_NAME = "localhost"
LOOPBACK: tuple[Network, ...] = ip_network("127.0.0.0/8"), ip_network("::1/128")
ALWAYS_REFUSED: tuple[tuple[Network, str], ...] = tuple(
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
"""Networks that are always refused; the first match is the reason."""

_MAPPED: tuple[Network, ...] = ip_network("::ffff:0:0/96"), ip_network("::ffff:0:0:0/96")
"""IPv4 addresses in IPv6 form, RFC 4291 and RFC 2765."""
_NAT64 = ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
"""Range of local NAT64 prefixes of any length, RFC 8215."""
_SHORTER_PREFIXES = 48, 56, 64
"""Prefix lengths in bits that leave a suffix after the address, RFC 6052, 2.2."""
LISTED_IN_REFUSAL_MAX = 8
"""Maximum number of networks and names listed in a refusal."""
ADDRESS_CACHE_MAX = 8192
"""Size of the LRU cache of parsed addresses."""


class _Range(NamedTuple):
    """Network as numbers, which compare twenty times as fast."""

    version: int
    first: int
    last: int
    what: str


def _to_ranges(networks: Iterable[tuple[Network, str]]) -> tuple[_Range, ...]:
    return tuple(
        _Range(each.version, int(each.network_address), int(each.broadcast_address), what)
        for each, what in networks
    )


_REFUSED_RANGES = _to_ranges(ALWAYS_REFUSED)
_LOOPBACK_RANGES = _to_ranges((each, "") for each in LOOPBACK)
_OF_IPV4 = _to_ranges((each, "") for each in _MAPPED)
_TRANSLATED = _to_ranges([(_NAT64, "")])
_LOCALLY_TRANSLATED = _to_ranges([(_LOCAL_NAT64, "")])


@dataclass(frozen=True)
class EgressPolicy:
    """Egress policy.

    networks, hosts: permitted destinations; both empty means all that are not always refused
    loopback: whether this machine may be connected to
    A host with a leading dot matches all subdomains.
    """

    networks: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    loopback: bool = True

    def address_refusal(self, host: str, address: str | None) -> str | None:
        """Return why a connection is forbidden, or None.

        host: name as requested, or the address itself
        address: numeric address; None for ipc and inproc, which stay on this machine
        """
        if address is None:
            return None if self.loopback else f"{host} stays on this machine; {_loopback_advice()}"
        why = self._numeric_refusal(host, _parse_address(address))
        if why is None:
            return None
        return (
            f"{address} {why}" if host == address else f"{host} resolves to {address}, which {why}"
        )

    def host_refusal(self, host: str) -> str | None:
        """Return why a host is forbidden as far as known before its name is resolved."""
        if _parse_address(host) is not None:
            return self.address_refusal(host, host)
        name = _normalise_name(host)
        if not self.loopback and (name == LOOPBACK_NAME or name.endswith(f".{LOOPBACK_NAME}")):
            return f"{host} is this machine; {_loopback_advice()}"
        if self.hosts and not self.networks and not self._is_listed_name(host):
            return f"{host} {self._not_listed_text()}"
        return None

    def url_refusal(self, url: str) -> str | None:
        """Return why the host of a well-formed URL is forbidden."""
        host = urlsplit(url).hostname
        return self.host_refusal(host) if host else None

    def endpoint_refusal(self, endpoint: str) -> str | None:
        """Return why the host of a well-formed ZMQ endpoint is forbidden."""
        host = tcp_host(endpoint)
        if host is None:
            return self.address_refusal(endpoint, None)
        return None if host == ANY_HOST else self.host_refusal(host)

    def _numeric_refusal(self, host: str, address: Address | None) -> str | None:
        if address is None:
            return "is not an address"
        meant = list(_effective_addresses(address))
        # Both forms: an IPv6 address may itself be refused, and so may the IPv4 address behind it.
        for each in (address, *meant):
            if _is_loopback_address(each):
                if not self.loopback:
                    return f"is this machine; {_loopback_advice()}"
            elif (never := _find_range(_REFUSED_RANGES, each)) is not None:
                return f"is {never.what}: always refused"
        if not self.networks and not self.hosts:
            return None
        # A listed name is trusted with any address, except those refused above.
        if (
            self._is_listed_name(host)
            or self._is_listed(address)
            or all(map(self._is_permitted, meant))
        ):
            return None
        return self._not_listed_text()

    def _is_permitted(self, address: Address) -> bool:
        """Return whether an address that is not always refused is permitted."""
        return _is_loopback_address(address) or self._is_listed(address)

    def _is_listed(self, address: Address) -> bool:
        return _find_range(self._listed_ranges, address) is not None

    @cached_property
    def _listed_ranges(self) -> tuple[_Range, ...]:
        return _to_ranges((each, "") for each in self.networks)

    def _is_listed_name(self, host: str) -> bool:
        name = _normalise_name(host)
        return any(
            name.endswith(each) if each.startswith(".") else name == each for each in self.hosts
        )

    def _not_listed_text(self) -> str:
        listed = [*map(str, self.networks), *self.hosts]
        more = (
            f" and {len(listed) - LISTED_IN_REFUSAL_MAX} more"
            if len(listed) > LISTED_IN_REFUSAL_MAX
            else ""
        )
        return f"is not permitted by {FLAG}: {', '.join(listed[:LISTED_IN_REFUSAL_MAX])}{more}"


def parse_network(text: str) -> Network:
    """Return a network that may be listed.  Raises ValueError."""
    network = ip_network(text)
    if any(_is_subnet(network, each) for each in LOOPBACK):
        raise ValueError(f"use {LOOPBACK_FLAG} to permit this machine")
    for refused, what in ALWAYS_REFUSED:
        if _is_subnet(network, refused):
            raise ValueError(f"it is {what}, always refused")
    if any(_is_subnet(network, each) for each in _MAPPED):
        raise ValueError("give IPv4-mapped addresses in IPv4 notation")
    return network


def _is_subnet(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


def _loopback_advice() -> str:
    return f"{LOOPBACK_FLAG} permits this"


def _normalise_name(host: str) -> str:
    return host.lower().removesuffix(".")


def _find_range(ranges: Iterable[_Range], address: Address) -> _Range | None:
    """Return the first range that contains the address."""
    version, number = address.version, int(address)
    for each in ranges:
        if each.version == version and each.first <= number <= each.last:
            return each
    return None


def _is_loopback_address(address: Address) -> bool:
    return _find_range(_LOOPBACK_RANGES, address) is not None


@lru_cache(ADDRESS_CACHE_MAX)
def _parse_address(text: str) -> Address | None:
    """Parse an address, ignoring its zone and mapping IPv6 forms of IPv4.

    None if it is no address.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return IPv4Address(int(address) & 0xFFFFFFFF) if _find_range(_OF_IPV4, address) else address


def _effective_addresses(address: Address) -> Iterator[Address]:
    """Yield the addresses where packets may arrive; all of them must be permitted."""
    if isinstance(address, IPv4Address):
        yield address
        return
    number = int(address)
    if _find_range(_LOCALLY_TRANSLATED, address):
        # Every possible reading must be allowed, since the prefix length of the translator is
        # unknown.
        yield from _nat64_addresses(number)
    elif _find_range(_TRANSLATED, address):
        yield IPv4Address(number & 0xFFFFFFFF)
    else:
        yield address


def _nat64_addresses(number: int) -> Iterator[Address]:
    """Yield the IPv4 addresses that NAT64 translators may extract, for each prefix length.

    Shorter prefixes skip bits 64 to 71 and ignore the suffix.  0.x.x.x and x.0.0.0 are no hosts;
    they result from the zeros of another prefix length.
    """
    without_gap = number >> 64 << 56 | number & (1 << 56) - 1
    shorter = (without_gap >> (120 - bits - 32) & 0xFFFFFFFF for bits in _SHORTER_PREFIXES)
    found = [*shorter, number & 0xFFFFFFFF]
    somebody = [each for each in found if each >> 24 and each & 0xFFFFFF]
    yield from map(IPv4Address, somebody or found[-1:])
