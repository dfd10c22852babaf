"""Tests of the whole health monitor against its naive twin.

The twin decides which ranks are checked, when and how often, the results of checks, each rank's
weight, and whether further ranks may be ejected. Operators define the right answers here, so each
answer is right or wrong by itself.
"""

from itertools import cycle

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.answers.answer_check import CanaryAnswer, ExpectedAnswer
from select_service.core.health.checks.canary_prompts import CanaryPrompt
from select_service.core.health.checks.check_state import Attempt, CheckedWorker
from select_service.core.health.checks.hash_mixing import phase_of
from select_service.core.health.health_effects import ReleaseRequested, WeightChanged
from select_service.core.health.health_kinds import AttemptResult, CheckKind, RequestOutcome
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import DESIGN_DOCUMENT_RULES, HealthRules
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import PartitionKey, Rank
from tests.builders.hypothesis_profiles import explored
from tests.models.monitor_model import MonitorModel
from tests.vectors.health_states import word_of

A, B, NOT_CHECKED = (PartitionKey(name, "t") for name in ("a", "b", "c"))
N_PROMPTS = {A: 3, B: 1, NOT_CHECKED: 0}
RANKS_MAX = 9
"""Limit on the ranks of a partition: beyond it, the choice of confirming peers is random."""
EXPECTED = ExpectedAnswer([5, 6], (-2.0, 0.0), checks_logprobs=True)


def an_answer(*tokens, first=-1.0):
    return CanaryAnswer(tokens, [first, *[-1.0] * (len(tokens) - 1)])


CAME = {
    "pass": Attempt(AttemptResult.ANSWER, 50.0, an_answer(5, 6)),
    "token_mismatch": Attempt(AttemptResult.ANSWER, 50.0, an_answer(5, 7)),
    "logit_drift": Attempt(AttemptResult.ANSWER, 50.0, an_answer(5, 6, first=-3.0)),
    "malformed": Attempt(AttemptResult.MALFORMED),
    "connect": Attempt(AttemptResult.CONNECT),
    "timeout": Attempt(AttemptResult.TIMEOUT),
    "http_5xx": Attempt(AttemptResult.HTTP_5XX),
    "busy": Attempt(AttemptResult.BUSY),
    "misconfigured": Attempt(AttemptResult.MISCONFIGURED, why="400"),
}
FAULTS = st.sampled_from(["slow", "unmeasured", "connect", *CAME])
WORKERS = st.integers(0, 7)
SECONDS = st.sampled_from([0, 3, 8, 12, 30, 60])
WORKER = st.fixed_dictionaries(
    {
        "key": st.sampled_from([A, A, A, B, NOT_CHECKED]),
        "ranks": st.integers(1, 2),
        "endpoint": st.sampled_from(["own", "own", "shared", None]),
        "is_spare": st.sampled_from([False, False, False, True]),
    }
)


class MonitorMatchesModel(RuleBasedStateMachine):
    @initialize(
        rules=st.sampled_from([HealthRules(), HealthRules(), DESIGN_DOCUMENT_RULES]),
        workers=st.lists(WORKER, min_size=2, max_size=8),
    )
    def begin(self, rules, workers):
        rules = rules._replace(interval_s=5.0)
        prompts = {
            key: [CanaryPrompt((at, 1), expected=EXPECTED) for at in range(n)]
            for key, n in N_PROMPTS.items()
        }
        self.ranks = {f"{w}.{r}": Rank(w, r) for w in range(8) for r in range(2)}
        self.names = {rank: name for name, rank in self.ranks.items()}
        self.booked = dict.fromkeys(self.ranks, 0)
        self.faults, self.orders, self.pausing, self.weights = {}, {}, set(), {}
        self.monitor = HealthMonitor(
            rules, prompts.__getitem__, self.count_reservations, DirtyPartitions(lambda: None)
        )
        phases = {name: phase_of(rank) for name, rank in self.ranks.items()}
        self.model = MonitorModel(rules, N_PROMPTS, phases)
        self.now = 0.0
        for worker_id, worker in enumerate(workers):
            self.join(worker_id, worker)

    def count_reservations(self, rank):
        return self.booked[self.names[rank]]

    # --- ranks

    def here(self, worker_id):
        return [name for name in (f"{worker_id}.0", f"{worker_id}.1") if name in self.model.ranks]

    @rule(worker_id=WORKERS, worker=WORKER)
    def join(self, worker_id, worker):
        key, n = worker["key"], worker["ranks"]
        others = [r for name, r in self.model.ranks.items() if name not in self.here(worker_id)]
        if sum(rank["key"] == key for rank in others) + n > RANKS_MAX:
            return
        urls = {"own": f"http://{worker_id}", "shared": "http://shared", None: None}
        endpoint, is_spare = urls[worker["endpoint"]], worker["is_spare"]
        self.monitor.register_worker(
            CheckedWorker(worker_id, key, range(n), endpoint, is_spare), self.now
        )
        names = [f"{worker_id}.{dp_rank}" for dp_rank in range(n)]
        for name in self.here(worker_id):
            if name not in names:
                self.model.leave(name)
        self.model.join(names, key, endpoint, is_spare, self.now)
        self.apply_changes()

    @rule(worker_id=WORKERS)
    def leave(self, worker_id):
        self.monitor.remove_worker(worker_id)
        for name in self.here(worker_id):
            self.model.leave(name)

    # --- checks

    @rule(
        workers=st.sets(WORKERS, min_size=1),
        faults=st.lists(FAULTS, min_size=1, max_size=3),
        seconds=SECONDS,
    )
    def spoil(self, workers, faults, seconds):
        """Give these answers in turn from now on."""
        self.faults |= {worker_id: cycle(faults) for worker_id in workers}
        self.live(seconds)

    @rule(waits_s=st.lists(st.sampled_from([60.0, 300.0, 600.0]), max_size=3), seconds=SECONDS)
    def heal(self, waits_s, seconds):
        """Heal all engines; enough time may pass to check ejected ranks."""
        self.faults.clear()
        for seconds_before in waits_s:
            self.pass_time(seconds_before)
        self.live(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.7, 5.0]))
    def ask(self, seconds):
        self.now += seconds
        begun = {}
        while (order := self.monitor.next_due_check(self.now)) is not None:
            name = self.names[order.rank]
            begun[name] = (
                order.prompt_number,
                order.attempts_max,
                order.is_probe,
                order.must_name_rank,
            )
            assert name not in self.orders
            self.orders[name] = order
        assert begun == self.model.due(self.now)

    @rule(n=st.integers(1, 16), newest=st.booleans(), flaky=st.none() | FAULTS)
    def answer(self, n, newest, flaky):
        """flaky: result in place of the next one; None means the next one"""
        for name in list(self.orders)[:: -1 if newest else 1][:n]:
            faults = self.faults.get(self.ranks[name].worker_id)
            self.answer_one(name, flaky or (next(faults) if faults else "pass"))

    def answer_one(self, name, fault):
        came = "pass" if fault in ("slow", "unmeasured") else fault
        took_ms = 400.0 if fault == "slow" else 50.0
        counts, order = fault != "unmeasured", self.orders.pop(name)
        if name in self.pausing:
            self.pausing.discard(name)
            assert self.monitor.may_continue(order)
        attempt = CAME[came]._replace(latency_ms=took_ms, counts_latency=counts)
        pause_s = self.monitor.process_attempt(order, attempt, self.now)
        again = self.model.process_attempt(name, came, took_ms if counts else None, self.now)
        assert pause_s == (0.5 if again else None)
        if again:
            self.orders[name] = order
            self.pausing.add(name)
        self.model.learn_order(
            {n: self.monitor.next_check_at(self.ranks[n]) for n in self.model.ranks}
        )
        self.apply_changes()

    @rule(seconds=SECONDS)
    def live(self, seconds):
        """Let time pass as in the service: a turn every second, and engines answer."""
        for second in range(seconds):
            self.pass_time(1.0)
            self.ask(0.0)
            while self.orders:
                self.answer(16, newest=False, flaky=None)
            if second % 5 == 0:
                self.both_agree()

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 60.0, 300.0, 600.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.look()
        assert not self.monitor.advance_timers(self.now)
        self.model.tick(self.now)
        self.apply_changes()

    # --- other events

    @rule(worker_id=WORKERS, count=st.integers(0, 3))
    def book(self, worker_id, count):
        self.booked[f"{worker_id}.0"] = count

    @rule(
        worker_id=WORKERS,
        outcome=st.sampled_from(["ok", "neutral", "failure", "failure", "failure", "fatal"]),
        times=st.integers(1, 4),
        is_believed=st.sampled_from([True, True, False]),
        after_s=st.sampled_from([0, 2, 4, 6]),
    )
    def report(self, worker_id, outcome, times, is_believed, after_s):
        self.live(after_s)
        self.look()
        report = OutcomeReport(Rank(worker_id, 0), RequestOutcome(outcome), times=times)
        self.monitor.process_report(report, is_believed, self.now)
        self.model.report(f"{worker_id}.0", outcome, times, is_believed, self.now)
        self.apply_changes()

    @rule(worker_id=WORKERS, verb=st.sampled_from(["drain", "undrain", "check"]))
    def operate(self, worker_id, verb):
        self.look()
        operations = {
            "drain": self.monitor.drain_ranks,
            "undrain": self.monitor.undrain_ranks,
            "check": self.monitor.check_worker,
        }
        operations[verb](worker_id, self.now)
        for name in self.here(worker_id):
            if verb == "check":
                self.model.ask(name, self.now, again_s=0.0)
            else:
                self.model.operate(verb, name, self.now)
        self.apply_changes()

    @rule(is_open=st.booleans())
    def connect(self, is_open):
        """Pass the outcome of connections to monitor and twin; the monitor chooses the checks."""
        endpoints = set()
        while (endpoint := self.monitor.next_connection_probe()) is not None:
            endpoints.add(endpoint)
        for endpoint in endpoints:
            self.monitor.process_connection(endpoint, is_open, self.now)
        assert self.model.connections(is_open, self.now) == endpoints
        self.apply_changes()

    def look(self):
        """Show the present bookings to the twin."""
        for name in self.model.ranks:
            if self.model.rank(name).booked != self.booked[name]:
                self.model.states(name).book(name, self.booked[name])

    def apply_changes(self):
        effects = self.monitor.take_effects()
        for effect in effects:
            if isinstance(effect, WeightChanged):
                self.weights[self.names[effect.rank]] = effect.weight
            elif isinstance(effect, ReleaseRequested):
                self.booked[self.names[effect.rank]] = 0
        words = [word_of(effect, self.names) for effect in effects]
        said = [word for word in words if word is not None and not word.startswith("drained")]
        assert sorted(said) == sorted(self.model.actions)
        self.model.actions = []

    # --- comparison

    @invariant()
    def both_agree(self):
        if not hasattr(self, "model"):
            return
        self.monitor.check_invariants()
        assert {self.names[rank] for rank in self.monitor.iterate_ranks()} == set(self.model.ranks)
        for name in self.model.ranks:
            assert self.record_values(name) == self.expected(name), name
        for key in self.model.partitions:
            health = self.monitor.find_partition(key).health
            for cause in (
                CheckKind.TIMEOUT,
                CheckKind.LATENCY_SPIKE,
                CheckKind.CONNECT,
                CheckKind.LOGIT_DRIFT,
            ):
                assert health.registry.is_within_limit(cause) == self.model.may_eject(key, cause)
        self.counts_agree()

    def counts_agree(self):
        counts, expected = self.monitor.counters, self.model.counts
        for kind in (*CAME, "neutral", "latency_spike"):
            if kind not in ("busy", "misconfigured"):
                assert counts.checks[CheckKind(kind)] == expected[kind], kind
        names = ("flaky", "withheld", "common mode", "busy", "misconfigured")
        found = [counts.flaky, counts.withheld, counts.common_mode]
        assert [*found, counts.busy, counts.misconfigured] == [expected[name] for name in names]

    def record_values(self, name):
        record = self.monitor.record_of(self.ranks[name])
        at = self.monitor.next_check_at(self.ranks[name])
        return (
            record.state.label,
            record.failures,
            record.cause,
            record.breaker.state.label,
            record.is_spare,
            record.baseline.value_ms,
            record.published_weight,
            None if at is None else round(at, 6),
        )

    def expected(self, name):
        rank, turn = self.model.rank(name), self.model.ranks[name]["turn"]
        return (
            rank.state,
            rank.failures,
            rank.cause,
            rank.breaker,
            rank.spare,
            rank.baseline_ms,
            self.model.told[name],
            None if turn is None else round(turn[0], 6),
        )


TestMonitorMatchesModel = explored(MonitorMatchesModel, runs=100)
