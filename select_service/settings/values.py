"""How the text of a setting becomes a value; the ValueError of others says what may stand."""

import ipaddress
import math
import re
from collections.abc import Callable
from contextlib import suppress

from indexer.endpoints import endpoint_error
from select_service.command_line import choice as choice
from select_service.command_line import number as number
from select_service.command_line import whole as whole
from select_service.destinations import network_of
from select_service.spelling import shown
from select_service.urls import service_url_error

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
NOBODY = "nobody"
SHOWN_CHARS_MAX = 200
"""How much of a wrong value an error line repeats."""


def file_mode(text: str) -> str:
    """Of files that the process itself must be able to read and write."""
    bits = int(text, 8) if MODE.fullmatch(text) else 0
    if bits & 0o600 != 0o600 or bits & ~0o666:
        raise ValueError("an octal mode from 0600 to 0666 whose owner reads and writes, as 0640")
    return f"{bits:04o}"


def some_of(*words: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        found = tuple(part.strip().lower() for part in text.split(","))
        if not set(found) <= set(words) or len(set(found)) < len(found):
            raise ValueError("some of " + ", ".join(words) + ", separated by commas")
        return found

    return parse


def policy(names: tuple[str, ...], options: tuple[str, ...]) -> Callable[[str], str]:
    """A policy, the first one perhaps with options behind it, as `policies.choice_named` reads."""

    def parse(text: str) -> str:
        name, *given = text.lower().split("+")
        is_known = name in names and set(given) <= set(options) and len(set(given)) == len(given)
        if not is_known or (given and name != names[0]):
            raise ValueError(f"{', '.join(names)}, or {names[0]}+{options[0]} and the like")
        return text.lower()

    return parse


def flag(text: str) -> bool:
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise ValueError("one of " + ", ".join(TRUE_WORDS + FALSE_WORDS))


def text(text: str) -> str:
    if not text:
        raise ValueError("a text that is not empty")
    return text


class PartError(ValueError):
    """One part of a value makes no sense; the text names it, so the whole is not shown."""


def peers(text: str) -> tuple[str, ...]:
    """Distinct endpoints, sorted."""
    endpoints = {part.strip() for part in text.split(",") if part.strip()}
    for endpoint in sorted(endpoints):
        error = endpoint_error(endpoint)
        if error is not None:
            fault = error.removeprefix(f"invalid ZMQ endpoint `{endpoint}`: ")
            raise PartError(f"invalid replica peer endpoint `{endpoint}`: {fault}")
    return tuple(sorted(endpoints))


def url(text: str) -> str:
    error = service_url_error(text)
    if len(text) > URL_CHARS_MAX:
        error = f"it has more than {URL_CHARS_MAX} characters"
    if error is not None:
        raise ValueError(f"an http or https URL ({error})")
    return text


def dump_peers(text: str) -> tuple[str, ...]:
    """Distinct, in the given order."""
    urls = tuple(dict.fromkeys(url.strip() for url in text.split(",") if url.strip()))
    if len(urls) > DUMP_PEERS_MAX:
        raise ValueError(f"at most {DUMP_PEERS_MAX} URLs")
    for url in urls:
        error = service_url_error(url)
        if error is not None:
            shown = repr(url[:SHOWN_CHARS_MAX])[1:-1]
            raise PartError(f"invalid peer `{shown}`: {error}")
    return urls


def number_or_infinity(text: str) -> float:
    """`inf` is what the reference takes for never."""
    return math.inf if text.lower() in ("inf", "infinity") else number(0, math.inf)(text)


def names(text: str) -> tuple[str, ...]:
    """Distinct, in the given order."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or len(set(found)) < len(found) or len(found) > NAMES_MAX:
        raise ValueError(f"1 to {NAMES_MAX} different names, separated by commas")
    if max(map(len, found)) > TIER_CHARS_MAX:
        raise ValueError(f"names of at most {TIER_CHARS_MAX} characters")
    return found


def hosts(text: str) -> tuple[str, ...]:
    """Distinct names; one with a dot before it stands for all that end so, `*` for all."""
    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not 1 <= len(found) <= HOSTS_MAX:
        raise ValueError(f"1 to {HOSTS_MAX} names, separated by commas, or *")
    for name in found:
        if name != "*" and not HOST.fullmatch(name):
            raise PartError(f"invalid host name `{shown(name)}`: no scheme, port or path")
    return found


def networks(text: str) -> tuple[str, ...]:
    """Of addresses, in the CIDR notation; a single address is a network of its own."""
    if text.lower() == NOBODY:
        return ()
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not 1 <= len(parts) <= NETWORKS_MAX:
        raise ValueError(f"1 to {NETWORKS_MAX} networks, separated by commas, or {NOBODY}")
    return tuple(_network(part) for part in parts)


def destinations(text: str) -> tuple[str, ...]:
    """Networks in the CIDR notation, and names as in `hosts`."""
    parts = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not 1 <= len(parts) <= NETWORKS_MAX:
        raise ValueError(f"1 to {NETWORKS_MAX} networks or names, separated by commas")
    return tuple(map(_destination, parts))


def _destination(text: str) -> str:
    if ":" not in text and "/" not in text and not DIGITS.fullmatch(text):
        if not HOST.fullmatch(text):
            raise PartError(f"invalid host name `{shown(text)}`: no scheme, port or path")
        return text
    try:
        return str(network_of(text))
    except ValueError as error:
        raise _no_network(text, error) from None


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise _no_network(text, error) from None


def _no_network(text: str, error: ValueError) -> PartError:
    """The error in words, where it is Python's."""
    advice = str(error)
    try:
        meant = ipaddress.ip_network(text, strict=False)
        if ipaddress.ip_interface(text).ip != meant.network_address:
            advice = f"bits are set behind the mask, did you mean `{meant}`?"
    except ValueError:
        advice = "expected an address, or a network such as 10.0.0.0/8"
    return PartError(f"invalid network `{shown(text)}`: {advice}")


def host(text: str) -> str:
    """An address, or a name of this machine."""
    name = text.removeprefix("[").removesuffix("]").partition("%")[0]
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return text
    if not text or ":" in text or "/" in text:
        raise ValueError("an address or a name, without scheme and port")
    return text
