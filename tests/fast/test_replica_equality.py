"""Two replicas, each with and without the fast path: they tell each other the same, too."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.builders import worker_body
from tests.exploring import explored
from tests.fast.requests import request
from tests.fast.test_equality import TheSameAnswers, post, prompt_of
from tests.fast.two_services import REPLICA_FLAGS, TwoServices

EITHER = st.integers(0, 1)
MOST = 10**6


class TheSameReplicas(TheSameAnswers):
    """Everything is said to one of two replicas, which hear of it late or never."""

    flags = REPLICA_FLAGS
    replicas = 2

    @rule(replica=EITHER)
    def turn_to(self, replica: int) -> None:
        self.two.turn_to(replica)

    @rule(sender=EITHER, most=st.sampled_from((1, 2, MOST)), is_lost=st.booleans())
    def carry(self, sender: int, most: int, is_lost: bool) -> None:
        self.two.carry(sender, most, is_lost=is_lost)

    @rule(replica=EITHER)
    def compare(self, replica: int) -> None:
        self.two.tick(replica)
        self.two.carry(replica, MOST, is_lost=False)

    def teardown(self) -> None:
        for replica in (0, 1):
            self.compare(replica)
        super().teardown()


class TheSameReplicasWithAdmission(TheSameReplicas):
    flags = (
        *REPLICA_FLAGS,
        *("--active-decode-blocks-threshold", "0.5", "--active-prefill-tokens-threshold", "40"),
        *("--queue-threshold", "1.0", "--queue-timeout-secs", "0.001"),
    )


TestTheSameReplicas = explored(TheSameReplicas, runs=4)
TestTheSameReplicasWithAdmission = explored(TheSameReplicasWithAdmission, runs=3)


def test_what_the_fast_path_books_is_told() -> None:
    prompt = {"model_name": "m", **prompt_of(30, False)}
    lives = [
        post("/select_and_reserve", {**prompt, "reservation_id": "a"}),
        post("/reservations", {**prompt, "reservation_id": "b", "worker_id": 1}),
        *(request(f"POST /reservations/{name}/prefill_complete") for name in "ab"),
        *(request(f"DELETE /reservations/{name}") for name in "ab"),
    ]
    with TwoServices(*REPLICA_FLAGS, replicas=2) as two:
        for replica in (1, 0):
            two.turn_to(replica)
            two.say(post("/workers", worker_body(1)))
        for data in lives:
            two.say(data)
            loads = []
            two.carry(0, MOST, is_lost=False)
            for replica in (1, 0):
                two.turn_to(replica)
                loads.append(two.say(request("GET /loads")))
            assert loads[0] == loads[1]
        assert two.answered == len(lives)
