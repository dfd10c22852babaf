"""Naive twin of all of health: times, results and consequences of checks.

Every operation looks at all ranks. The states of a partition are those of `HealthModel`; a rank is
a name, a check a dictionary. Answers are right or wrong by themselves here: learning from answers
and the order under scarce checks have separate tests. The twin follows docs/guides/health.md.
"""

from collections import Counter
from math import floor, inf

from tests.models.health_model import OUT, WRONG, HealthModel, RankModel

SLOW = {"timeout", "latency_spike"}
BUSY_MAX, LATE_S, ASKED_AGAIN_S = 10, 1.0, 5.0
SLOW_PEERS, PEERS_APART_S, PROBES_APART_S = 8, 0.2, 1.0
UNKNOWN = {"turn": None, "asked_at": -inf, "connect_at": -inf, "wrong_prompt": 0, "busy": 0}


class MonitorModel:
    """Monitor of all partitions.

    phases: position of each rank's turn in an interval, 0 to 1
    prompts: number of prompts by model
    """

    def __init__(self, rules, prompts, phases):
        self.rules, self.prompts, self.phases = rules, prompts, phases
        self.partitions, self.ranks, self.running = {}, {}, {}
        self.counts, self.actions = Counter(), []
        self.seen = {}  # last results by model: rank -> (time, whether slow)
        self.told = {}  # weight of each rank, as the fleet has received it
        self.connecting = set()  # endpoints to which a connection is due
        self.asked = []  # peers checked in any order: (peers, times)

    # --- membership

    def join(self, names, key, endpoint, is_spare, now):
        """Add all ranks of a worker, which may have been registered before."""
        for name in names:
            known = self.ranks.get(name)
            if known and known["key"] == key:
                self.forget_process(name)
                self.states(name).register(name)
                del self.ranks[name]
            else:
                self.leave(name)
                self.partitions.setdefault(key, HealthModel(self.rules, (), ()))
                self.partitions[key].join(name, is_spare)
            self.ranks[name] = {"key": key, "endpoint": endpoint, **UNKNOWN}
            self.plan_regular_check(name, now)
            self.told[name] = self.weight(name, now)
        self.follow({}, now)

    def leave(self, name):
        if name in self.ranks:
            key = self.ranks[name]["key"]
            self.forget_process(name)
            self.partitions[key].leave(name)
            if not self.partitions[key].ranks:
                del self.partitions[key]
                self.seen.pop(key, None)
            del self.ranks[name], self.told[name]

    def forget_process(self, name):
        """Forget the process behind a rank, because another process has replaced it."""
        self.seen.get(self.ranks[name]["key"], {}).pop(name, None)
        if name in self.running:
            self.running[name]["is_stale"] = True

    def states(self, name):
        return self.partitions[self.ranks[name]["key"]]

    def rank(self, name) -> RankModel:
        return self.states(name).ranks[name]

    def weight(self, name, now):
        return self.states(name).weight(self.rank(name), now)

    def is_checked(self, name):
        rank = self.ranks[name]
        return rank["endpoint"] is not None and self.prompts[rank["key"]] > 0

    def may_eject(self, key, cause):
        return self.partitions[key].allowed(RankModel("one more", cause=cause))

    # --- turns: (time, prompt or None for that of the round, whether the turn must not be skipped)

    def plan_regular_check(self, name, now):
        interval, offset = self.rules.interval_s, self.phases[name] * self.rules.interval_s
        at = offset + (floor((now - offset) / interval) + 1) * interval
        self.turn(name, at, None, False)

    def turn(self, name, at, prompt=None, is_extra=True):
        if self.is_checked(name):
            self.ranks[name]["turn"] = (at, prompt, is_extra)

    def may_request(self, name, now, again_s=ASKED_AGAIN_S):
        rank = self.ranks[name]
        is_planned = rank["turn"] is not None and name not in self.running
        return is_planned and now - rank["asked_at"] >= again_s

    def ask(self, name, now, again_s=ASKED_AGAIN_S):
        if self.may_request(name, now, again_s):
            self.ranks[name]["asked_at"] = now
            self.turn(name, now)

    def schedule_peer_checks(self, name, now):
        key = self.ranks[name]["key"]
        peers = [peer for peer in self.ranks if self.ranks[peer]["key"] == key and peer != name]
        peers = [p for p in peers if self.rank(p).state not in OUT and self.may_request(p, now)]
        assert len(peers) <= SLOW_PEERS, "which of them are asked is not said anywhere"
        self.asked.append((peers, [now + at * PEERS_APART_S for at in range(len(peers))]))

    def learn_order(self, next_at):
        """Take over the order of peer checks, which is a matter of chance.

        next_at: time of the next check by name
        """
        for peers, times in self.asked:
            assert sorted(next_at[peer] for peer in peers) == times
            for peer in peers:
                self.turn(peer, next_at[peer])
                self.ranks[peer]["asked_at"] = times[0]
        self.asked = []

    # --- checks

    def due(self, now):
        """Start the due checks.

        Return prompt, most attempts, whether the rank is out, and whether it must be named, by
        rank.
        """
        begun = {}
        for name, rank in self.ranks.items():
            if rank["turn"] is None or rank["turn"][0] > now:
                continue
            at, prompt, is_extra = rank["turn"]
            if name in self.running or (now - at > LATE_S and not is_extra):
                self.plan_regular_check(name, now)
                continue
            rank["turn"] = None
            prompt = floor(now / self.rules.interval_s) if prompt is None else prompt
            begun[name] = self.begin(name, prompt % self.prompts[rank["key"]], now)
        return begun

    def begin(self, name, prompt, now):
        rank = self.rank(name)
        hangs = rank.state == "suspicious" and rank.cause == "timeout"
        attempts_max = 1 if hangs else 1 + self.rules.retries
        check = {"prompt": prompt, "at": now, "attempts_max": attempts_max, "came": []}
        self.running[name] = check | {"is_stale": False}
        behind = [r for r in self.ranks.values() if r["endpoint"] == self.ranks[name]["endpoint"]]
        return prompt, attempts_max, rank.state in OUT, len(behind) > 1

    def process_attempt(self, name, came, latency_ms, now):
        """Process the result of an attempt; return whether the rank is asked once more.

        came: result of the attempt alone, "busy" or "misconfigured"
        latency_ms: latency in milliseconds; None means that the attempt does not count
        """
        check = self.running.pop(name)
        if check["is_stale"]:
            return False
        check["came"].append(came)
        wrong = [kind for kind in check["came"] if kind in WRONG]
        is_over = came == "pass" or (came in ("busy", "misconfigured") and not wrong)
        if not is_over and len(check["came"]) < check["attempts_max"]:
            self.running[name] = check
            return True
        self.is_over(name, check, latency_ms if came == "pass" else None, now)
        return False

    def is_over(self, name, check, latency_ms, now):
        rank, came = self.ranks[name], check["came"]
        kind = came[-1]
        rank["busy"] = rank["busy"] + 1 if kind == "busy" else 0
        if kind == "busy" and rank["busy"] >= BUSY_MAX:
            kind = "timeout"
        self.counts["flaky"] += kind == "pass" and len(came) > 1
        wrong = [k for k in came if k in WRONG]
        if kind != "pass" and wrong:
            kind = wrong[0]
        if kind in ("busy", "misconfigured"):
            self.counts[kind] += 1
            kind = "neutral"
        self.deliver_result(name, kind, check, latency_ms, now)

    def deliver_result(self, name, kind, check, latency_ms, now):
        before = self.snapshot()
        if latency_ms is not None and self.states(name).is_spike(self.rank(name), latency_ms):
            kind = "latency_spike"
        if kind != "neutral" and (kind != "pass" or latency_ms is not None):
            kind = self.unless_common(name, kind, now)
        self.counts[kind] += 1
        if kind in WRONG:
            self.ranks[name]["wrong_prompt"] = check["prompt"]
        was_failing = self.rank(name).failures > 0
        for other in self.concerned(name, kind, check["at"], now):
            latency = latency_ms or 0.0, latency_ms is not None
            answered = any(came not in ("timeout", "connect") for came in check["came"])
            self.states(other).check(other, kind, *latency, now, answered)
            self.plan(other, kind, check, now)
        if kind in SLOW and not was_failing:
            self.schedule_peer_checks(name, now)
        self.follow(before, now)

    def unless_common(self, name, kind, now):
        """Treat a slow result as neutral when over half of at least three ranks are slow."""
        key = self.ranks[name]["key"]
        last = self.seen.setdefault(key, {})
        last[name] = (now, kind in SLOW)
        for other, (at, _) in list(last.items()):
            if now - at > 2 * self.rules.interval_s:
                del last[other]
        slow = [other for other, (_, is_slow) in last.items() if is_slow]
        if kind not in SLOW or len(slow) < 3 or 2 * len(slow) <= len(last):
            return kind
        self.counts["common mode"] += 1
        for other in slow:
            if self.rank(other).cause in SLOW:
                self.states(other).clear_suspicion(other)
        return "neutral"

    def concerned(self, name, kind, started_at, now):
        """Return the ranks that a result concerns.

        A failed connection concerns all checked ranks behind the same endpoint, once for checks
        that were under way together.
        """
        if kind != "connect":
            return [name]
        found = []
        for other, rank in self.ranks.items():
            is_behind = rank["endpoint"] == self.ranks[name]["endpoint"]
            if is_behind and self.is_checked(other) and rank["connect_at"] < started_at:
                rank["connect_at"] = now
                found.append(other)
        return found

    def plan(self, name, kind, check, now):
        """Plan the next turn after a result; ranks that an operator drained get none."""
        rank, rules = self.rank(name), self.rules
        is_decided = kind == "neutral" or rank.failures >= rules.failures
        if rank.operator:
            return
        if rank.state == "suspicious" and not is_decided:
            self.turn(name, max(now, check["at"] + rules.confirm_s), check["prompt"])
        elif rank.state not in OUT:
            self.plan_regular_check(name, now)
        elif rank.state == "dead" and rank.passes:
            self.turn(name, now + PROBES_APART_S)
        elif rank.breaker == "half_open" and kind == "neutral":
            self.turn(name, now + rules.interval_s)

    # --- consequences of changed states

    def snapshot(self):
        """Return the values of each rank on which weight and turns depend."""
        ranks = [self.rank(name) for name in self.ranks]
        return {r.name: (r.state, r.spare, r.recovered_at, r.failures) for r in ranks}

    def follow(self, before, now):
        """Apply the consequences of a change.

        before: snapshot before the change
        """
        for states in self.partitions.values():
            for word, name, *_ in [said.split() for said in states.actions]:
                was, rank = before.get(name, ("healthy",))[0], self.rank(name)
                turn, confirm_at = self.ranks[name]["turn"], now + self.rules.confirm_s
                is_doubted = rank.cause == "passive"
                if word == "check":
                    self.ask(name, now)
                elif word == "probe":
                    at = now + (PROBES_APART_S if rank.passes else 0.0)
                    self.turn(name, at, self.ranks[name]["wrong_prompt"] + rank.passes)
                elif word in OUT:
                    self.ranks[name]["turn"] = None
                elif word == "healthy" and was in OUT:
                    self.plan_regular_check(name, now)
                elif word == "suspicious" and is_doubted and turn and turn[0] > confirm_at:
                    self.turn(name, confirm_at)
                self.counts["withheld"] += word == "withheld"
            self.actions += [said for said in states.actions if not said.startswith("drained")]
            states.actions = []
        for name, what in self.snapshot().items():
            if before.get(name, what) != what:
                self.told[name] = self.weight(name, now)

    # --- others

    def report(self, name, outcome, times, is_believed, now):
        """Process a passive report; failures of ranks that are not checked do not count."""
        if name not in self.ranks or (outcome == "failure" and not self.is_checked(name)):
            return
        before = self.snapshot()
        if not is_believed:
            self.ask(name, now)
        for _ in range(min(times, self.rules.passive_failures) if is_believed else 0):
            self.states(name).report(name, outcome, now)
        self.follow(before, now)

    def connections(self, is_open, now):
        """Try all due connections; return the endpoints."""
        before, tried = self.snapshot(), self.connecting
        for name, rank in self.ranks.items():
            if rank["endpoint"] in tried and name not in self.running:
                self.states(name).connection(name, is_open, now)
        self.connecting = set()
        self.follow(before, now)
        return tried

    def operate(self, verb, name, now):
        """Apply an operator's command.

        verb: "drain" or "undrain"
        """
        before = self.snapshot()
        getattr(self.states(name), verb)(name, now)
        self.follow(before, now)

    def tick(self, now):
        before = self.snapshot()
        for states in self.partitions.values():
            self.connecting |= {self.ranks[name]["endpoint"] for name in states.tick(now)}
        self.follow(before, now)
        self.told = {name: self.weight(name, now) for name in self.ranks}
