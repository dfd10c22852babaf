"""Player of the steps of a scenario against this service or the reference."""

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from tests.builders.launched_process import free_port
from tests.builders.service_process import Answer, ServiceClient
from tests.golden import deviations, exchanges
from tests.golden.background import BackgroundCalls
from tests.golden.exchanges import Differences, Side
from tests.golden.kv_publisher import KvPublisher, batch
from tests.golden.replica_frames import FrameReceiver

Step = dict[str, Any]

StartService = Callable[[tuple[str, ...], Mapping[str, str]], AbstractContextManager[Any]]
"""Function from flags and environment to a block with a running service, which has a `port`."""

ASKED_AGAIN = ("POST /select", "POST /overlap_scores", "POST /potential_loads")
"""Calls that change nothing, like all GETs."""
BOOKINGS = ("POST /select_and_reserve", "POST /reservations")
SETTLED_S_MAX = 3.0
"""Most seconds that an answer may need to follow changes made by another way than HTTP."""
ASK_AGAIN_S = 0.05
READ_S = 0.15
"""Seconds after which the reference usually has read events; the reference does not show this."""


TTL_VARIABLE = "DYN_ROUTER_PREDICTED_TTL_SECS"
IN_TIME = 0.75
"""Share of the time to live within which a `timed` call must be answered after a booking."""
RUNS_MAX = 20


class TooLate(Exception):
    """Call that came after the expiry of its subject, because the machine was busy."""


class ScenarioPlayer:
    """Run of a scenario."""

    def __init__(
        self,
        service: ServiceClient,
        background: BackgroundCalls,
        publishers: Mapping[str, KvPublisher],
        frames: FrameReceiver | None,
        side: Side,
        ttl_s: float,
    ) -> None:
        """Start a run.

        ttl_s: time to live of the bookings that `timed` calls must see, seconds
        """
        self._in_time_s = IN_TIME * ttl_s
        self._booked_at = inf
        self._service = service
        self._background = background
        self._publishers = publishers
        self._frames = frames
        self._side = side
        self._is_settled = True
        self._kinds: dict[str, Callable[[Step], Differences]] = {
            "settle": self._settle,
            "pause": self._pause,
            "publish": self._publish,
            "frame": self._send_frame,
            "frames": self._compare_frames,
            "background": self._begin,
            "waits": self._compare_waiting,
            "join": self._join,
        }

    def play(self, step: Step) -> Differences:
        """Play a step; return the differences if the step has an answer."""
        for kind, play in self._kinds.items():
            if kind in step:
                return play(step)
        return self._call(step)

    def _settle(self, step: Step) -> Differences:
        """Wait for the reference, which answers a change of workers before the change applies."""
        if self._side is Side.REFERENCE:
            time.sleep(step["settle"])
        return {}

    def _pause(self, step: Step) -> Differences:
        self._booked_at = inf
        time.sleep(step["pause"])
        return {}

    def _publish(self, step: Step) -> Differences:
        publisher = self._publishers[step["publish"]]
        seq = publisher.send(batch(step["events"]))
        if self._side is Side.OURS:
            self._service.wait_until_read(publisher.port, seq)
        else:
            self._is_settled = False
            time.sleep(READ_S)
        return {}

    def _send_frame(self, step: Step) -> Differences:
        frames = [bytes.fromhex(frame) for frame in step["send_hex"]]
        self._publishers[step["frame"]].send_frames(frames)
        self._is_settled = False
        return {}

    def _compare_frames(self, step: Step) -> Differences:
        assert self._frames is not None
        published = self._frames.receive(len(step["frames"]))
        return exchanges.compare_frames(step, published)

    def _begin(self, step: Step) -> Differences:
        self._background.begin(step["background"], exchanges.request_of(step))
        return {}

    def _compare_waiting(self, step: Step) -> Differences:
        waits = self._background.waits(step["waits"])
        return {} if waits else {f"{step['step']}/waits": (True, False)}

    def _join(self, step: Step) -> Differences:
        return self._compare(step, self._background.join(step["join"]))

    def _call(self, step: Step) -> Differences:
        request = exchanges.request_of(step)
        if step["call"] in BOOKINGS:
            self._booked_at = time.monotonic()
        found = self._compare(step, self._service.call(*request))
        if step.get("timed") and time.monotonic() - self._booked_at > self._in_time_s:
            raise TooLate
        changes_nothing = step["call"].startswith("GET ") or step["call"] in ASKED_AGAIN
        if self._is_settled or step.get("timed") or not changes_nothing:
            return found
        until = time.monotonic() + SETTLED_S_MAX
        while found and time.monotonic() < until:
            time.sleep(ASK_AGAIN_S)
            found = self._compare(step, self._service.call(*request))
        return found

    def _compare(self, step: Step, answer: Answer) -> Differences:
        return exchanges.differences(step, answer, self._side)


class PlayedScenario(NamedTuple):
    """Differences of a scenario, and the ports of the publishers by name."""

    differences: Differences
    ports: Mapping[str, int]


def play_scenario(
    name: str, start: StartService, side: Side, context: zmq.Context[Any], folder: Path
) -> PlayedScenario:
    """Play a scenario against a new service.

    folder: folder for the policy file
    """
    for _ in range(RUNS_MAX):
        with contextlib.suppress(TooLate):
            return _play_once(name, start, side, context, folder)
    raise AssertionError(f"{name}: the machine is too busy")


def _play_once(
    name: str, start: StartService, side: Side, context: zmq.Context[Any], folder: Path
) -> PlayedScenario:
    head, steps = exchanges.read(name)
    publishers = {each: KvPublisher(context) for each in exchanges.ports_named_in([head, *steps])}
    ports = {each: publisher.port for each, publisher in publishers.items()}
    own_port = free_port()
    flags = exchanges.flags_of(head, ports, own_port)
    exchanges.write_policy_file(head, folder)
    found: Differences = {}
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(start(flags, head["environment"]))
        service = stack.enter_context(contextlib.closing(ServiceClient(running.port)))
        background = stack.enter_context(BackgroundCalls(service))
        frames = None
        if any("frames" in step for step in steps):
            frames = stack.enter_context(FrameReceiver(context, own_port))
        ttl_s = float(head["environment"].get(TTL_VARIABLE, "inf"))
        player = ScenarioPlayer(service, background, publishers, frames, side, ttl_s)
        for template in steps:
            step = deviations.rewritten(name, template) if side is Side.OURS else template
            found |= player.play(exchanges.with_ports(step, ports))
    return PlayedScenario(found, ports)
