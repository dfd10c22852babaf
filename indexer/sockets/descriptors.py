"""EDGE: how many ranks can be listened to before file descriptors are short for everybody else."""

import os
import resource

RANK_FILES = 6
"""Of one rank: the socket of its events, its connection and the monitor of it (4), and as long as
it catches up a second socket with its connection."""
HTTP_FILES = 64
"""Kept for clients of the service, whatever ranks there are."""
OWN_FILES = 48
"""For what the process opens besides once it serves: its listeners, replicas, the snapshot file."""


def allow_many() -> None:
    """Raise the limit as far as it may be: a rank takes several, and the usual one is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room_for_ranks() -> int:
    """How many ranks may be listened to, as things stand."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ranks_of(limit, _in_use())


def ranks_of(limit: int, in_use: int) -> int:
    """How many ranks fit under a limit of descriptors when so many are in use."""
    return max(0, limit - in_use - OWN_FILES - HTTP_FILES) // RANK_FILES


def _in_use() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return OWN_FILES
