"""Which ranks have room for one more prompt of a policy class, and among whom it then chooses.

A class has room by load, where a request goes only where there is room, or, with `queue_policy:
work`, by the work that is left: then one candidate that begins soon opens all of them, since a rank
that has the prompt cached may be the better one although it is not free yet.
"""

from typing import NamedTuple

import numpy as np

from select_service.core.admission.busy import NO_LIMITS, free_ranks
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.room_kernels import fill_room
from select_service.core.arrays import Mask
from select_service.core.fleet.partition import Partition

HOLD_TOKENS = 8192.0
"""Work left above which a rank begins no other prompt soon, unless its class says otherwise; a rank
with a larger batch budget takes more at once."""


class Room(NamedTuple):
    """ranks: that have room, and how many they are;  eligible: if there are any, a request of the
    class chooses among these
    """

    ranks: Mask
    n_ranks: int
    eligible: Mask


def room_for(partition: Partition, not_busy: Mask, rules: PolicyClass) -> Room:
    """not_busy: bool[n_slots], the candidates below the busy thresholds"""
    if not rules.holds:
        ranks, n_ranks = free_ranks(partition, not_busy, NO_LIMITS, rules)
        return Room(ranks, n_ranks, ranks)
    tokens, batches = rules.prefill_busy_threshold, rules.prefill_busy_threshold_frac
    ranks = np.empty(len(not_busy), np.bool_)
    n_ranks = fill_room(
        partition.placing.plan,
        not_busy,
        HOLD_TOKENS if tokens is None else float(tokens),
        0.0 if batches is None else batches * partition.batch_share,
        ranks,
    )
    return Room(ranks, n_ranks, not_busy)
