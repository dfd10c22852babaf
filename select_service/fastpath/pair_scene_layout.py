"""Layout of the header through which compiled code serves pairs in a partition.

An int64 array that lives as long as its `PairScene`: pairs (address, length) of arrays, then plain
numbers.

pair             type     length           meaning
PAIR             int64                     header of the `PairPlacer` (core.pairs.pair_layout)
WORK_PARAMETERS  float64                   parameters of the policy `work`
ROLES            bool     2 * slots        ranks for prefills, then for decodes
MASKS            bool     3 * slots        scratch: eligible ranks, see `pair_kernels`
LEG_NAME         uint8    LEG_NAME_BYTES   scratch: name of the prefill leg
TRAFFIC          int64    N_COUNTERS       counters of booked pairs (core.pairs.pair_traffic_layout)
DECIDED          int64    N_DECIDED        counters of all decisions, there too
"""

from select_service.core.load.prefill_legs import LEG_SUFFIX
from select_service.fastpath.parsing.request_layout import TEXT_BYTES_MAX

PAIR, WORK_PARAMETERS, ROLES, MASKS, LEG_NAME, TRAFFIC, DECIDED = range(0, 14, 2)
(
    SCOPE_BYTES,  # length of the part of a rank's text that names the partition
    N_OPEN,  # number of ranks that take requests, counted by the last choice
    IS_REMOTE,  # whether the last choice has two ranks
) = range(14, 17)
SCENE_LENGTH = 17

NEEDS_ROOM, NEEDS_RELEASE = -100, -101
"""Outcomes of `serve_pair` besides those of serve_layout: the tables of the load must grow first;
memory of a load must be released first.
"""
LEG_NAME_BYTES = TEXT_BYTES_MAX + len(LEG_SUFFIX)
