"""Player of measured profiles, which become samples of the performance model."""

from collections.abc import Iterator
from typing import Any

from select_service.planner.core.performance.measured_profile import DecodeSurface, PrefillCurve
from tests.vectors.differences import Difference, differences


def play(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare (requests, tokens, seconds) of every point, in the order of the file."""
    npz = case["npz"]
    curve = PrefillCurve(npz["prefill"]["prefill_isl"], npz["prefill"]["prefill_ttft"])
    found = [[1, tokens, seconds] for tokens, seconds in curve.points]
    yield from differences(case["prefill_samples"], found, "prefill_samples")
    decode = npz["decode"]
    surface = DecodeSurface(
        decode["x_kv_usage"],
        decode["y_context_length"],
        decode["z_itl"],
        decode["max_kv_tokens"][0],
    )
    found = [list(each) for each in surface.to_samples()]
    yield from differences(case["decode_samples"], found, "decode_samples")
