"""Ranks with room for another prompt of a policy class, and the ranks such a prompt may use.

By default, load determines room, with `queue_policy: work` the remaining work.  One candidate with
room opens all candidates, since a rank without room may hold the prompt in its cache and be the
better choice.
"""

from typing import NamedTuple

import numpy as np

from select_service.core.admission.busy_check import NO_THRESHOLDS, free_ranks
from select_service.core.admission.headroom_kernels import fill_headroom
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.array_types import Mask
from select_service.core.registry.fleet.partition import Partition

WORK_LEFT_MAX = 8192.0
"""Default limit of the remaining work of a rank with room, in tokens.

A rank with a larger batch budget takes more at once.
"""


class Headroom(NamedTuple):
    """Ranks with room for a class.

    ranks: mask of the ranks with room
    n_ranks: number of these
    """

    ranks: Mask
    n_ranks: int


def compute_headroom(partition: Partition, not_busy: Mask, rules: PolicyClass) -> Headroom:
    """Return the room for a class.

    not_busy: bool[n_slots], candidates below the busy thresholds
    """
    # The thresholds were applied to `not_busy` already, hence NO_THRESHOLDS.
    if not rules.waits_for_work:
        return Headroom(*free_ranks(partition, not_busy, NO_THRESHOLDS, rules))
    tokens, batches = rules.prefill_busy_threshold, rules.prefill_busy_threshold_frac
    ranks = np.empty(len(not_busy), np.bool_)
    n_ranks = fill_headroom(
        partition.placer.plan,
        not_busy,
        WORK_LEFT_MAX if tokens is None else float(tokens),
        0.0 if batches is None else batches * partition.effective_batch_share,
        ranks,
    )
    return Headroom(ranks, n_ranks)
