"""Parsers of setting values; a ValueError contains the expected form."""

import ipaddress
import math
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from indexer.zmq_endpoints import endpoint_error
from select_service.base.command_line import finite_number as finite_number
from select_service.base.command_line import one_of_words as one_of_words
from select_service.base.command_line import whole_number as whole_number
from select_service.base.suggestions import printable_name
from select_service.net.egress_policy import parse_network
from select_service.net.urls import service_url_error

TRUE_WORDS = ("1", "true", "on", "yes")
FALSE_WORDS = ("0", "false", "off", "no")
DUMP_PEERS_MAX = 16
NAMES_MAX = 16
TIER_CHARS_MAX = 64
MODE = re.compile(r"(0o?)?[0-7]{3}")
URL_CHARS_MAX = 512
NETWORKS_MAX = 64
HOSTS_MAX = 64
HOST = re.compile(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
DIGITS = re.compile(r"[0-9.]+")
LINK_NAMES = ("nvlink", "nvswitch", "infiniband", "pcie", "unknown")
_NUMBER = r"(?:[0-9]{1,15}(?:\.[0-9]{1,6})?(?:e[0-9]{1,2})?)"
LINK = re.compile(rf"({'|'.join(LINK_NAMES)})=(?=[0-9.]*[1-9]){_NUMBER}:{_NUMBER}")
NOBODY = "nobody"
PUBLIC_TRACKING_HASH = "public-xxh3-v1"
KEYED_TRACKING_HASH = "keyed-xxh3-v1"
SHOWN_CHARS_MAX = 200
"""Maximum number of characters of a wrong value shown in an error."""


def file_mode(text: str) -> str:
    """Return an octal file mode that lets the owner read and write."""
    bits = int(text, 8) if MODE.fullmatch(text) else 0
    if bits & 0o600 != 0o600 or bits & ~0o666:
        raise ValueError(
            "an octal mode from 0600 to 0666 with read and write for the owner, such as 0640"
        )
    return f"{bits:04o}"


def words_of(*words: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        found = tuple(part.strip().lower() for part in text.split(","))
        if not set(found) <= set(words) or len(set(found)) < len(found):
            raise ValueError("some of " + ", ".join(words) + ", separated by commas")
        return found

    return parse


def policy_name(names: tuple[str, ...], options: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser of policies, the first one optionally with options (see
    `policy_registry.parse_policy_choice`).
    """

    def parse(text: str) -> str:
        name, *given = text.lower().split("+")
        is_known = name in names and set(given) <= set(options) and len(set(given)) == len(given)
        if not is_known or (given and name != names[0]):
            raise ValueError(
                f"{', '.join(names)}, or with options, such as {names[0]}+{options[0]}"
            )
        return text.lower()

    return parse


def true_or_false(text: str) -> bool:
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise ValueError("one of " + ", ".join(TRUE_WORDS + FALSE_WORDS))


def non_empty_text(text: str) -> str:
    if not text:
        raise ValueError("a non-empty text")
    return text


class PartError(ValueError):
    """Error in one part of a value; the text names the part, so the whole value is not shown."""


def _distinct_parts(text: str) -> tuple[str, ...]:
    """Return the distinct non-empty parts between commas, in the given order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def replica_peers(text: str) -> tuple[str, ...]:
    """Return the distinct endpoints, sorted."""
    endpoints = tuple(sorted(_distinct_parts(text)))
    for endpoint in endpoints:
        error = endpoint_error(endpoint)
        if error is not None:
            fault = error.removeprefix(f"invalid ZMQ endpoint `{endpoint}`: ")
            raise PartError(f"invalid replica peer endpoint `{endpoint}`: {fault}")
    return endpoints


def service_url(text: str) -> str:
    error = service_url_error(text)
    if len(text) > URL_CHARS_MAX:
        error = f"more than {URL_CHARS_MAX} characters"
    if error is not None:
        raise ValueError(f"an http or https URL ({error})")
    return text


def dump_peers(text: str) -> tuple[str, ...]:
    """Return the distinct URLs in the given order."""
    urls = _distinct_parts(text)
    if len(urls) > DUMP_PEERS_MAX:
        raise ValueError(f"at most {DUMP_PEERS_MAX} URLs")
    for url in urls:
        error = service_url_error(url)
        if error is not None:
            shown = repr(url[:SHOWN_CHARS_MAX])[1:-1]
            raise PartError(f"invalid peer `{shown}`: {error}")
    return urls


def tracking_hash(text: str) -> str:
    """Return the name of the hash for active requests; Dynamo's other name is refused."""
    if text.lower() == KEYED_TRACKING_HASH:
        raise PartError(f"`{KEYED_TRACKING_HASH}` is not supported: use {PUBLIC_TRACKING_HASH}")
    return one_of_words(PUBLIC_TRACKING_HASH)(text)


def unsupported_tracking_key(text: str) -> str:
    raise PartError(
        f"keys of tracking hashes are not supported, got `{printable_name(text)}`: remove the "
        f"setting, the hash is {PUBLIC_TRACKING_HASH}"
    )


def unsupported_worker_selection(text: str) -> str:
    raise PartError(
        f"unknown worker selection `{printable_name(text)}`: remove the variable, and choose a "
        "policy with --policy"
    )


def number_or_infinity(text: str) -> float:
    """Return a number; Dynamo uses `inf` for never."""
    return math.inf if text.lower() in ("inf", "infinity") else finite_number(0, math.inf)(text)


def distinct_names(text: str) -> tuple[str, ...]:
    """Return the distinct names in the given order."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or len(set(found)) < len(found) or len(found) > NAMES_MAX:
        raise ValueError(f"1 to {NAMES_MAX} different names, separated by commas")
    if max(map(len, found)) > TIER_CHARS_MAX:
        raise ValueError(f"names of at most {TIER_CHARS_MAX} characters")
    return found


def host_names(text: str) -> tuple[str, ...]:
    """Return the distinct host names.

    A leading dot matches all subdomains, `*` matches all names.
    """
    found = _distinct_parts(text.lower())
    if not 1 <= len(found) <= HOSTS_MAX:
        raise ValueError(f"1 to {HOSTS_MAX} names, separated by commas, or *")
    for name in found:
        if name != "*":
            _check_host_name(name)
    return found


def cidr_networks(text: str) -> tuple[str, ...]:
    """Return the distinct networks in CIDR notation; a single address is a network."""
    if text.lower() == NOBODY:
        return ()
    parts = _distinct_parts(text)
    if not 1 <= len(parts) <= NETWORKS_MAX:
        raise ValueError(f"1 to {NETWORKS_MAX} networks, separated by commas, or {NOBODY}")
    return tuple(_parse_cidr(part, ipaddress.ip_network) for part in parts)


def falling_ratios(text: str) -> tuple[str, ...]:
    """Return the four falling ratios of the degradation levels 0 to 3, as numbers in text."""
    parts = tuple(part.strip() for part in text.split(","))
    try:
        ratios = tuple(map(float, parts))
    except ValueError:
        ratios = ()
    if len(ratios) != 4 or not all(a > b for a, b in pairwise((*ratios, 0.0))) or ratios[0] > 10:
        raise ValueError("four falling numbers from 10 to above 0, separated by commas")
    return parts


def link_speeds(text: str) -> tuple[str, ...]:
    """Return the distinct links as NAME=BYTES_PER_S:MS."""
    if not text:
        return ()
    parts = _distinct_parts(text)
    names = [LINK.fullmatch(part) for part in parts]
    if not all(names) or len({match[1] for match in names if match}) < len(parts):
        known = ", ".join(LINK_NAMES)
        raise ValueError(f"NAME=BYTES_PER_S:MS, each of {known} at most once, separated by commas")
    return parts


def egress_destinations(text: str) -> tuple[str, ...]:
    """Return the distinct networks (CIDR notation) and host names (as in `host_names`)."""
    parts = _distinct_parts(text.lower())
    if not 1 <= len(parts) <= NETWORKS_MAX:
        raise ValueError(f"1 to {NETWORKS_MAX} networks or names, separated by commas")
    return tuple(map(_parse_destination, parts))


def _parse_destination(text: str) -> str:
    if ":" not in text and "/" not in text and not DIGITS.fullmatch(text):
        _check_host_name(text)
        return text
    return _parse_cidr(text, parse_network)


def _check_host_name(name: str) -> None:
    if not HOST.fullmatch(name):
        raise PartError(f"invalid host name `{printable_name(name)}`: no scheme, port or path")


def _parse_cidr(text: str, parse: Callable[[str], object]) -> str:
    """Return a network in the usual notation."""
    try:
        return str(parse(text))
    except ValueError as error:
        raise _network_error(text, error) from None


def _network_error(text: str, error: ValueError) -> PartError:
    """Return the error for an invalid network, with advice."""
    advice = str(error)
    try:
        # A second, lenient parse tells set host bits from plain nonsense.
        meant = ipaddress.ip_network(text, strict=False)
        if ipaddress.ip_interface(text).ip != meant.network_address:
            advice = f"host bits are set, did you mean `{meant}`?"
    except ValueError:
        advice = "expected an address, or a network such as 10.0.0.0/8"
    return PartError(f"invalid network `{printable_name(text)}`: {advice}")


def bind_host(text: str) -> str:
    """Return an address, or a name of this machine."""
    name = text.removeprefix("[").removesuffix("]").partition("%")[0]
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return text
    if not text or ":" in text or "/" in text:
        raise ValueError("an address or a name, without scheme and port")
    return text
