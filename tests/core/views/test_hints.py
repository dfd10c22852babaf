from select_service.core.views.hints import HINTS_MAX, EventEndpoints, users_of, worker_hints

RIGHT = EventEndpoints("tcp://w:5557", "tcp://w:5657")


def hints(endpoint="http://w:8000", mine=RIGHT, others=None):
    ranks = {(1, 0): mine, **(others or {})}
    return worker_hints(1, endpoint, {0: mine}, users_of(ranks))


def test_a_registration_as_it_should_be_has_no_hints():
    assert hints() == hints("ray://actor") == hints(None) == []
    assert hints(mine=EventEndpoints("tcp://w:5557", None)) == []


def test_an_endpoint_that_is_no_url():
    assert hints("w:8000") == ["endpoint `w:8000` is no URL: is `http://w:8000` meant?"]


def test_an_address_that_only_an_engine_can_bind():
    for host in ("*", "0.0.0.0", "[::]"):
        [hint] = hints(mine=EventEndpoints(f"tcp://{host}:5557", RIGHT.replay))
        assert hint.startswith(f"KV events endpoint `tcp://{host}:5557` of dp_rank 0 is what an")
    assert len(hints(mine=EventEndpoints("tcp://*:5557", "tcp://*:5558"))) == 2


def test_replays_where_the_events_are():
    [hint] = hints(mine=EventEndpoints("tcp://w:5557", "tcp://w:5557"))
    assert "replay endpoint of dp_rank 0 is its KV events endpoint" in hint


def test_two_ranks_on_one_endpoint():
    [hint] = hints(others={(2, 3): RIGHT._replace(replay=None)})
    assert "is also that of worker 2 dp_rank 3" in hint


def test_a_worker_of_many_ranks_has_a_bounded_number():
    ranks = {rank: EventEndpoints("tcp://*:5557", None) for rank in range(100)}
    users = users_of({(1, rank): each for rank, each in ranks.items()})
    assert len(worker_hints(1, "http://w", ranks, users)) == HINTS_MAX
