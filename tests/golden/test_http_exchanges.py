"""Every golden exchange against a real process, with real event sockets beside it."""

from typing import Any

import pytest
import zmq

from tests.golden import deviations, exchanges
from tests.golden.kv_publisher import KvPublisher, batch
from tests.golden.service_process import ServiceProcess, free_port

pytestmark = pytest.mark.process


@pytest.mark.parametrize("scenario", exchanges.NAMES)
def test_answers_are_those_of_the_reference_except_where_listed(
    scenario: str, zmq_context: zmq.Context[Any]
) -> None:
    head, steps = exchanges.read(scenario)
    publishers = {
        name: KvPublisher(zmq_context) for name in exchanges.ports_named_in([head, *steps])
    }
    ports = {name: publisher.port for name, publisher in publishers.items()}
    found: exchanges.Differences = {}
    flags = exchanges.flags_of(head, ports, free_port())
    with ServiceProcess(head["environment"], flags) as service:
        for template in steps:
            step = exchanges.with_ports(deviations.rewritten(scenario, template), ports)
            if "publish" in step:
                publisher = publishers[step["publish"]]
                seq = publisher.send(batch(step["events"]))
                service.wait_until_read(publisher.port, seq)
                continue
            answer = service.call(*exchanges.request_of(step))
            found |= exchanges.differences(
                step, answer.status, answer.body, answer.headers.get("allow")
            )
    complaints = deviations.unexpected(scenario, found)
    assert not complaints, "\n".join(complaints)
