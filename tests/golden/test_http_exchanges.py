"""Every golden exchange against a whole service, with real event sockets beside it."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from tests.builders.in_thread import InThread
from tests.builders.launched_process import free_port
from tests.builders.running import complaint
from tests.builders.service_process import ServiceClient, run_to_end
from tests.golden import deviations, exchanges
from tests.golden.background import BackgroundCalls
from tests.golden.kv_publisher import KvPublisher, batch

pytestmark = pytest.mark.process

Step = dict[str, Any]


PATHS = {"fast": (), "ordinary": ("--no-fast-path",)}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("scenario", [n for n in exchanges.NAMES if n not in deviations.NO_START])
def test_answers_are_those_of_the_reference_except_where_listed(
    scenario, path, zmq_context, tmp_path
):
    head, steps = exchanges.read(scenario)
    publishers = {
        name: KvPublisher(zmq_context) for name in exchanges.ports_named_in([head, *steps])
    }
    ports = {name: publisher.port for name, publisher in publishers.items()}
    found: exchanges.Differences = {}
    flags = exchanges.flags_of(head, ports, free_port())
    exchanges.write_policy_file(head, tmp_path)
    with (
        InThread(
            "--policy", "reference", *flags, *path, folder=tmp_path, environment=head["environment"]
        ) as running,
        contextlib.closing(ServiceClient(running.port)) as service,
        BackgroundCalls(service) as background,
    ):
        for template in steps:
            step = exchanges.with_ports(deviations.rewritten(scenario, template), ports)
            found |= play(step, service, background, publishers)
    complaints = deviations.unexpected(scenario, found, ports=ports)
    assert not complaints, "\n".join(complaints)


def play(
    step: Step,
    service: ServiceClient,
    background: BackgroundCalls,
    publishers: Mapping[str, KvPublisher],
) -> exchanges.Differences:
    """Do what the step says; what differs, if it has an answer."""
    if "publish" in step:
        publisher = publishers[step["publish"]]
        seq = publisher.send(batch(step["events"]))
        service.wait_until_read(publisher.port, seq)
        return {}
    if "background" in step:
        background.begin(step["background"], exchanges.request_of(step))
        return {}
    if "waits" in step:
        waits = background.waits(step["waits"])
        return {} if waits else {f"{step['step']}/waits": (True, False)}
    if "join" in step:
        answer = background.join(step["join"])
    else:
        answer = service.call(*exchanges.request_of(step))
    return exchanges.differences(step, answer.status, answer.body, answer.headers.get("allow"))


@pytest.mark.parametrize("scenario", deviations.NO_START)
def test_settings_of_the_reference_that_we_refuse_end_the_start(scenario, tmp_path):
    head, _ = exchanges.read(scenario)
    entry = deviations.NO_START[scenario]
    exchanges.write_policy_file(head, tmp_path)
    status, errors = run_to_end(head["environment"], tuple(head["flags"]), tmp_path)
    assert (status, complaint(errors)) == (entry["status"], entry["error"])
