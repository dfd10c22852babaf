"""What a loop answers, what it hands over, and how it follows the service."""

import contextlib
from random import Random

import pytest

from select_service.loops import loop_layout as layout
from select_service.loops import taking_over
from select_service.loops.taking_over import RETURN_AFTER
from tests.builders import worker_body
from tests.loops.running import HEALTH, PROMPT, SELECT, OnLoops
from tests.patience import eventually
from tests.process.running import Client, request

pytestmark = pytest.mark.process


def counted(service: OnLoops, route: str) -> float:
    """Requests of a route with status 200, as /metrics says."""
    text = service.call("GET", "/metrics").body.decode()
    labels = f'{{method="POST",route="{route}",status="200"}}'
    name = f"select_service_requests_total{labels}"
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_usual_requests_stay_on_the_loop(service: OnLoops) -> None:
    before = counted(service, "/select")
    handed = service.n_handed
    with service.client() as client:
        for _ in range(5):
            client.send(SELECT)
            answer = client.answer()
            assert answer.status == 200
            assert answer.body["effective_prefill_tokens"] == 5
            assert answer.headers["date"].endswith("gmt")
    assert service.n_handed == handed
    assert counted(service, "/select") == before + 5


def test_what_loops_decide_is_observed_with_all_that_is_known_of_it() -> None:
    with OnLoops() as service:
        service.with_workers()
        path = "/planner/observation?model_name=m&window_s=60"
        assert service.call("GET", path).body["arrivals"] == 0
        handed = service.n_handed
        with service.client() as client:
            for n in (5, 20):
                client.send(request("POST", "/select", {**PROMPT, "token_ids": list(range(n))}))
                assert client.answer().status == 200
        assert service.n_handed == handed
        seen = service.call("GET", path).body
        assert (seen["arrivals"], seen["isl"]["sum"], sum(seen["isl"]["counts"])) == (2, 25.0, 2)


def test_the_answer_is_that_of_the_event_loop(service: OnLoops) -> None:
    """A header that is not usual brings the same request there."""
    body = {**PROMPT, "selection_id": "turn-1", "token_ids": list(range(40))}
    with service.client() as client, service.client() as other:
        client.send(request("POST", "/select", body))
        other.send(request("POST", "/select", body, expect="100-continue"))
        assert other.answer().status == 100
        ours, theirs = client.answer(), other.answer()
    del ours.headers["date"], theirs.headers["date"]
    assert ours.headers == theirs.headers
    places = ("worker_id", "endpoint")
    assert {**ours.body, **dict.fromkeys(places)} == {**theirs.body, **dict.fromkeys(places)}


def test_many_requests_behind_each_other_are_answered_in_order(service: OnLoops) -> None:
    n = 3000
    requests = [
        request("POST", "/select", {**PROMPT, "selection_id": f"number-{k}"}) for k in range(n)
    ]
    handed = service.n_handed
    with service.client() as client:
        client.send(b"".join(requests))
        said = [client.answer().body["selection_id"] for _ in range(n)]
    assert said == [f"number-{k}" for k in range(n)]
    assert service.n_handed == handed


def test_a_request_may_come_in_two_parts_wherever_it_is_cut(service: OnLoops) -> None:
    handed = service.n_handed
    with service.client() as client:
        client.send(SELECT)
        assert client.answer().status == 200
        for cut in range(1, len(SELECT)):
            client.send(SELECT[:cut])
            eventually(lambda cut=cut: service.held() == cut)  # type: ignore[misc]
            client.send(SELECT[cut:] + SELECT[:1])
            assert client.answer().status == 200
            eventually(lambda: service.held() == 1)
            client.send(SELECT[1:])
            assert client.answer().status == 200
    assert service.n_handed == handed


def test_long_requests_are_collected(service: OnLoops) -> None:
    body = {"model_name": "m", "token_ids": list(range(100_000))}
    handed = service.n_handed
    with service.client() as client:
        for _ in range(3):
            client.send(request("POST", "/select", body) + SELECT)
            assert client.answer().body["effective_prefill_tokens"] == 100_000
            assert client.answer().body["effective_prefill_tokens"] == 5
    assert service.n_handed == handed


def test_a_connection_comes_back_once_it_asks_for_what_loops_answer(service: OnLoops) -> None:
    """And later and later, if it goes away again."""
    with service.client() as client:
        for returns in range(3):
            taken_back = service.counted(layout.TAKEN_BACK)
            client.send(HEALTH)
            assert client.answer().status == 200
            for _ in range(RETURN_AFTER << returns):
                assert service.counted(layout.TAKEN_BACK) == taken_back
                client.send(SELECT)
                assert client.answer().status == 200
            eventually(lambda n=taken_back: service.counted(layout.TAKEN_BACK) == n + 1)  # type: ignore[misc]
            answered = service.answered()
            for _ in range(5):
                client.send(SELECT)
                assert client.answer().status == 200
            assert service.answered() == answered + 5
    eventually(lambda: not service.connections)


def test_nothing_is_lost_on_the_way_to_and_fro(
    service: OnLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_over, "RETURN_AFTER", 0)
    random = Random(1)
    taken_back = service.counted(layout.TAKEN_BACK)
    with service.client() as client:
        for number in range(120):
            named = {**PROMPT, "selection_id": f"number-{number}"}
            stream = request("POST", "/select", named) * random.choice((1, 1, 2, 40))
            stream = (HEALTH + stream, stream, stream + HEALTH, stream)[number % 4]
            cut = random.randrange(len(stream))
            client.send(stream[:cut])
            client.send(stream[cut:])
            answers = [client.answer() for _ in range(stream.count(b" HTTP/1.1\r\n"))]
            assert [answer.status for answer in answers] == [200] * len(answers)
            said = [answer.body.get("selection_id") for answer in answers]
            assert said.count(f"number-{number}") == len(answers) - (number + 1) % 2
    assert service.counted(layout.TAKEN_BACK) > taken_back + 5
    eventually(lambda: not service.connections)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEALTH, 200),
        (request("GET", "/metrics"), 200),
        (request("POST", "/select_and_reserve", PROMPT), 200),
        (request("POST", "/select", {"model_name": "m", "token_ids": [1.5]}), 422),
        (request("POST", "/select", {"model_name": "nobody's", "token_ids": [1]}), 503),
        (b"\x00\xff\xfe garbage\r\n\r\n", 400),
    ],
)
def test_what_is_not_usual_is_handed_over_with_its_bytes(
    service: OnLoops, sent: bytes, status: int
) -> None:
    handed = service.counted(layout.UNUSUAL)
    with service.client() as client:
        client.send(SELECT + sent)
        assert client.answer().status == 200
        assert client.answer().status == status
        if status != 400:
            client.send(SELECT)
            assert client.answer().status == 200
    assert service.counted(layout.UNUSUAL) == handed + 1


def test_a_request_finds_what_changed_a_moment_ago(service: OnLoops) -> None:
    """Workers, their texts, partitions and load."""
    model = {"model_name": "changes"}
    asked = {**model, "token_ids": list(range(8))}
    with service.client() as client:

        def select() -> tuple[int, object]:
            client.send(request("POST", "/select", asked))
            answer = client.answer()
            return answer.status, answer.body.get("worker_id")

        def endpoint() -> object:
            client.send(request("POST", "/select", asked))
            return client.answer().body["endpoint"]

        with service.client() as other:  # asked while nobody knows of it, so its connection goes
            other.send(request("POST", "/select", asked))
            assert other.answer().status == 503
        assert service.post("/workers", worker_body(71, **model)).status == 201
        handed = service.n_handed
        assert select() == (200, 71)
        assert service.post("/workers", worker_body(72, **model)).status == 201
        reserved = {**asked, "worker_id": 71, "reservation_id": "busy"}
        assert service.post("/reservations", reserved).status == 201
        assert select() == (200, 72)
        assert service.call("PATCH", "/workers/72", {"endpoint": "http://new"}).status == 200
        assert endpoint() == "http://new"
        assert service.call("DELETE", "/workers/72").status == 200
        assert select() == (200, 71)
        assert service.n_handed <= handed + 6  # those of the other clients
        assert service.call("DELETE", "/workers/71").status == 200
        assert select()[0] == 503


def test_where_decisions_are_logged_connections_go_to_the_event_loop() -> None:
    with OnLoops() as service:
        service.with_workers()
        assert service.call("PUT", "/log_level", {"level": "debug"}).status == 200
        handed = service.n_handed
        with service.client() as client:
            for _ in range(3):
                client.send(SELECT)
                assert client.answer().status == 200
        assert service.n_handed == handed + 1


def chosen(client: Client) -> object:
    client.send(SELECT)
    answer = client.answer()
    return answer.body["worker_id"] if answer.status == 200 else answer.status


def reserve(service: OnLoops, worker: int, tokens: int) -> None:
    named = {"worker_id": worker, "reservation_id": f"on-{worker}"}
    body = {"model_name": "m", "token_ids": list(range(tokens)), **named}
    assert service.call("POST", "/reservations", body).status == 201


def test_busy_ranks_are_left_out_on_the_loop() -> None:
    with OnLoops("--active-prefill-tokens-threshold", "10") as service:
        service.with_workers()
        with service.client() as client:
            for _ in range(5):
                assert chosen(client) in (1, 2)
            reserve(service, 1, 40)
            assert [chosen(client) for _ in range(5)] == [2] * 5
            change = {"model": "m", "active_prefill_tokens_threshold": 100}
            assert service.call("POST", "/busy_threshold", change).status == 200
            reserve(service, 2, 80)
            assert [chosen(client) for _ in range(5)] == [1] * 5
            assert service.answered() == 15
            change["active_prefill_tokens_threshold"] = 20
            assert service.call("POST", "/busy_threshold", change).status == 200
            assert chosen(client) == 503
            assert service.answered() == 15
            assert service.call("DELETE", "/reservations/on-1").status == 200
        with service.client() as client:
            assert [chosen(client) for _ in range(5)] == [1] * 5
        assert service.answered() == 20


def test_nobody_is_answered_before_those_who_wait() -> None:
    with OnLoops("--queue-threshold", "0.001") as service:
        body = worker_body(1, max_num_batched_tokens=8192)
        assert service.call("POST", "/workers", body).status == 201
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(service.client()) for _ in range(3)]
            assert chosen(clients[0]) == 1
            answered = service.answered()
            assert answered > 0
            reserve(service, 1, 40)
            for n, client in enumerate(clients, 1):
                client.send(SELECT)
                eventually(lambda n=n: service.selector.gate.waiting.requests == n)  # type: ignore[misc]
            assert service.call("DELETE", "/reservations/on-1").status == 200
            assert [client.answer().status for client in clients] == [200] * 3
            assert service.answered() == answered
            with service.client() as client:
                assert chosen(client) == 1
            assert service.answered() == answered + 1


def test_a_policy_class_is_judged_by_the_event_loop() -> None:
    with OnLoops("--queue-threshold", "8.0") as service:
        body = worker_body(1, max_num_batched_tokens=8192)
        assert service.call("POST", "/workers", body).status == 201
        with service.client() as client:
            assert chosen(client) == 1
        answered = service.answered()
        with service.client() as client:
            client.send(request("POST", "/select", PROMPT, **{"x-dynamo-meta-policy-class": "b"}))
            (warning,) = client.answer().body["warnings"]
        assert warning.startswith("no policy class or family is called `b`,")
        assert service.answered() == answered


def test_two_loops_share_the_connections() -> None:
    with OnLoops(loops=2) as service, contextlib.ExitStack() as stack:
        service.with_workers()
        clients = [stack.enter_context(service.client()) for _ in range(64)]
        for client in clients:
            client.send(SELECT * 3)
        for client in clients:
            assert [client.answer().status for _ in range(3)] == [200] * 3
        accepted = [int(each.loop.counters[layout.ACCEPTED]) for each in service.served]
        assert min(accepted) > 0
        assert counted(service, "/select") == 64 * 3


def test_an_ending_service_answers_what_is_in_hand() -> None:
    """An idle connection ends, one with a part of a request too, and the rest of an answer goes
    out."""
    with contextlib.ExitStack() as stack:
        with OnLoops() as service:
            service.with_workers()
            clients = [stack.enter_context(Client(service.port)) for _ in range(3)]
            for client in clients:
                client.send(SELECT)
                assert client.answer().status == 200
            clients[1].send(SELECT[:50])
            eventually(lambda: service.held() == 50)
        assert clients[0].ended()
        assert clients[1].ended()
        assert clients[2].ended()
        with pytest.raises(ConnectionRefusedError):
            Client(service.port)
