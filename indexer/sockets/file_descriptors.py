"""EDGE: shares of the file descriptor limit for ranks and for outgoing HTTP."""

import os
import resource
from typing import NamedTuple

RANK_FILES = 6
"""Descriptors of a rank: the socket of events, the connection and the monitor (4), and during a
replay a second socket with a connection.
"""
HTTP_FILES = 64
"""Descriptors reserved for clients of the service."""
OWN_FILES = 48
"""Descriptors for everything else the process opens: listeners, replicas, the snapshot file."""
OUTGOING_SHARE = 8
"""Divisor: this share of the rest is for outgoing HTTP connections."""
OUTGOING_FILES_MIN = 8
OUTGOING_FILES_MAX = 8192


class DescriptorLimits(NamedTuple):
    """Limits: ranks to listen to, and outgoing HTTP connections, active and idle."""

    ranks: int
    outgoing_http: int


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard limit: a rank takes several, and 1024 is the usual soft
    limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def current_limits() -> DescriptorLimits:
    """Return the limits for the present state of the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits_for(limit, count_open_descriptors())


def limits_for(limit: int, in_use: int) -> DescriptorLimits:
    """Return the limits for `limit` descriptors, `in_use` of them taken."""
    left = max(0, limit - in_use - OWN_FILES - HTTP_FILES)
    asking = min(max(left // OUTGOING_SHARE, OUTGOING_FILES_MIN), OUTGOING_FILES_MAX)
    return DescriptorLimits(max(0, left - asking) // RANK_FILES, asking)


def count_open_descriptors() -> int:
    """Return the number of open descriptors."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return OWN_FILES
