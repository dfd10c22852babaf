"""EDGE: file descriptors, and how many of them whom may have before they are short for others."""

import os
import resource
from typing import NamedTuple

RANK_FILES = 6
"""Of one rank: the socket of its events, its connection and the monitor of it (4), and as long as
it catches up a second socket with its connection."""
HTTP_FILES = 64
"""Kept for clients of the service, whatever ranks there are."""
OWN_FILES = 48
"""For what the process opens besides once it serves: its listeners, replicas, the snapshot file."""
ASKING_SHARE = 8
"""One in so many of the rest is for connections on which this process asks others over HTTP."""
ASKING_FILES_MIN = 8
ASKING_FILES_MAX = 8192


class Room(NamedTuple):
    """How many there may be: ranks that are listened to, and connections to ask others over HTTP,
    idle ones included."""

    ranks: int
    asking: int


def allow_many() -> None:
    """Raise the limit as far as it may be: a rank takes several, and the usual one is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def present_room() -> Room:
    """As things stand."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return room_of(limit, in_use())


def room_of(limit: int, in_use: int) -> Room:
    """What fits under a limit of descriptors when so many are in use."""
    left = max(0, limit - in_use - OWN_FILES - HTTP_FILES)
    asking = min(max(left // ASKING_SHARE, ASKING_FILES_MIN), ASKING_FILES_MAX)
    return Room(max(0, left - asking) // RANK_FILES, asking)


def in_use() -> int:
    """Descriptors that are open now."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return OWN_FILES
