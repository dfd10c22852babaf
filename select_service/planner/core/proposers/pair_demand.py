"""Demand of each role where decode ranks compute a part of the prompts themselves."""

from typing import NamedTuple

from msgspec.structs import replace

from select_service.planner.core.forecast_contracts import MeanRequest
from select_service.planner.core.tick_input import LengthBins, TrafficWindow


class RemotePart(NamedTuple):
    """Part of the traffic that prefill ranks compute.

    requests: part of the requests
    shape:    mean request, with the uncached tokens that prefill ranks compute
    traffic:  window with these requests and their lengths
    """

    requests: float
    shape: MeanRequest
    traffic: TrafficWindow


def find_remote_part(shape: MeanRequest, traffic: TrafficWindow) -> RemotePart:
    """Return the part of prefill ranks: everything, without local prefills.

    Requests without a pair belong to the part, because each names its prefill rank.
    """
    pairs, uncached = traffic.pairs, traffic.uncached_isl
    if pairs is None or pairs.remote_uncached is None or uncached is None or not pairs.local:
        # Without any remote prompt the last known lengths are better than none.
        share = 1.0 if pairs is None or uncached is None else 1.0 - pairs.local_share
        return RemotePart(share, shape, traffic)
    share = 1.0 - pairs.local_share
    factor = pairs.remote_uncached.mean / uncached.mean
    requests = None if traffic.requests is None else traffic.requests * share
    remote = replace(traffic, uncached_isl=pairs.remote_uncached, requests=requests)
    return RemotePart(share, shape._replace(isl=shape.isl * factor), remote)


class LocalPart(NamedTuple):
    """Part of the traffic with prompts that decode ranks compute.

    requests: part of the requests;  lengths: their uncached tokens
    """

    requests: float
    lengths: LengthBins


def find_local_part(shape: MeanRequest, traffic: TrafficWindow) -> LocalPart | None:
    """Return the local part, stretched to the mean of the forecast; None without one."""
    pairs, uncached = traffic.pairs, traffic.uncached_isl
    if pairs is None or pairs.local_uncached is None or uncached is None:
        return None
    factor = max(1.0, shape.isl * (1.0 - shape.hit_rate)) / uncached.mean
    lengths = pairs.local_uncached
    scaled = LengthBins(means=tuple(mean * factor for mean in lengths.means), counts=lengths.counts)
    return LocalPart(pairs.local_share, scaled)
