"""Storage tiers of a KV block, and the medium names of engines for each tier.

The module holds names and their order only: a match continues from tier to tier in this order.
"""

from enum import IntEnum


class Tier(IntEnum):
    """Storage tier of a block; the value is the plane of a holder set and the column of a match."""

    GPU = 0
    CPU = 1
    DISK = 2
    EXTERNAL = 3


N_TIERS = len(Tier)

_TIER_OF_MEDIUM = {
    "GPU": Tier.GPU,
    "DEVICE": Tier.GPU,
    "CPU": Tier.CPU,
    "CPU_PINNED": Tier.CPU,
    "CPU_TIER1": Tier.CPU,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
    "EXTERNAL": Tier.EXTERNAL,
    "NETWORK": Tier.EXTERNAL,
    "REMOTE": Tier.EXTERNAL,
    "SHARED": Tier.EXTERNAL,
}


def tier_of_medium(medium: str | None) -> Tier | None:
    """Return the tier of an event's medium (any letter case): GPU without a medium, None if
    unknown.

    Events of an unknown medium must be dropped: counted as GPU, such blocks would promise hits that
    do not exist.
    """
    return Tier.GPU if medium is None else _TIER_OF_MEDIUM.get(medium.upper())
