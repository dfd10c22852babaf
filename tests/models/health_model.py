"""Naive twin of the state machine of health: every operation looks at all ranks.

Actions are words; a rank is a name. The twin follows the table in docs/guides/health.md.
"""

from dataclasses import dataclass, field
from math import floor, inf
from statistics import median

WRONG = {"token_mismatch", "logit_drift"}
LIMITED = {"timeout", "http_5xx", "malformed", "latency_spike", "passive"}
CODES = ["healthy", "suspicious", "unhealthy", "draining", "dead"]
OUT = {"unhealthy", "draining", "dead"}


@dataclass
class RankModel:
    name: str
    spare: bool = False
    state: str = "healthy"
    failures: int = 0
    silent: int = 0
    cause: str | None = None
    breaker: str = "closed"
    opened_at: float = 0.0
    timeout_s: float = 0.0
    passes: int = 0
    samples: list = field(default_factory=list)
    baseline_ms: float = 0.0
    booked: int = 0
    operator: bool = False
    unhealthy_at: float = 0.0
    draining_at: float = 0.0
    probed_at: float = 0.0
    recovered_at: float = -inf
    tried_at: float = 0.0
    pause_s: float = 0.0
    reported: list = field(default_factory=list)


class HealthModel:
    def __init__(self, rules, names, spares):
        self.rules = rules
        self.ranks = {name: RankModel(name, name in spares) for name in names}
        self.actions = []

    def log_action(self, *words):
        self.actions.append(" ".join(map(str, words)))

    def weight(self, rank, now):
        if rank.spare or rank.state in OUT:
            return 0.0
        if rank.state == "suspicious":
            kept = 0 if rank.cause == "latency_spike" else rank.failures - self.rules.failures
            return max(0.5 ** (1 + max(0, kept)), 1 / 64)
        rules, age = self.rules, now - rank.recovered_at
        if not rules.slow_start_s:
            return 1.0
        first = rules.slow_start_weight
        return min(1.0, first + (1 - first) * age / rules.slow_start_s)

    def describe_ranks(self, now):
        return {
            rank.name: {
                "state": rank.state,
                "code": CODES.index(rank.state),
                "weight": self.weight(rank, now),
                "breaker": rank.breaker,
                "failures": rank.failures,
                "cause": rank.cause,
                "baseline_ms": rank.baseline_ms,
                "spare": rank.spare,
            }
            for rank in self.ranks.values()
        }

    def tick(self, now):
        """Return the ranks to which a connection is tried."""
        tried = []
        for rank in self.ranks.values():
            if self.awaits_connection(rank) and now - rank.tried_at >= rank.pause_s:
                rank.tried_at = now
                tried.append(rank.name)
            if rank.state == "dead":
                if now - rank.probed_at >= self.rules.dead_probe_s:
                    rank.probed_at = now
                    self.log_action("probe", rank.name)
                continue
            if rank.state not in OUT:
                continue
            may_probe = rank.breaker == "open" and not rank.operator
            if may_probe and now - rank.opened_at >= rank.timeout_s:
                rank.breaker, rank.passes = "half_open", 0
                self.log_action("probe", rank.name)
            if rank.state == "draining" and now - rank.draining_at >= self.rules.drain_s:
                self.release(rank)
            if not rank.operator and now - rank.unhealthy_at >= self.rules.dead_after_s:
                self.release(rank)
                rank.state, rank.breaker, rank.passes = "dead", "open", 0
                rank.probed_at = now
                self.log_action("dead", rank.name)
        return tried

    def awaits_connection(self, rank):
        is_out = rank.state in OUT and rank.cause == "connect" and self.rules.connect_s > 0
        return is_out and rank.breaker == "open" and not rank.passes

    def connection(self, name, is_open, now):
        rank = self.ranks[name]
        if not self.awaits_connection(rank):
            return
        if not is_open:
            rank.pause_s = self.rules.connect_s
            return
        rank.pause_s = min(2 * rank.pause_s, max(self.rules.connect_s, self.rules.recovery_s))
        if rank.state == "dead":
            rank.probed_at = now
        else:
            rank.breaker, rank.passes = "half_open", 0
        self.log_action("probe", rank.name)

    def release(self, rank):
        if rank.booked:
            self.log_action("release", rank.name, rank.booked)
            rank.booked = 0

    def check(self, name, result, latency_ms, counts, now, answered=False):
        rank = self.ranks[name]
        if result == "neutral" or rank.operator:
            return
        if result == "pass" and counts and self.is_spike(rank, latency_ms):
            result = "latency_spike"
        if result != "pass":
            is_silent = result in ("timeout", "connect") and not answered
            rank.silent = rank.silent + 1 if is_silent else 0
            self.fail(rank, result, now)
            return
        if counts:
            self.learn(rank, latency_ms)
        if rank.state == "suspicious":
            self.heal(rank)
        elif rank.state == "dead" or (rank.state in OUT and rank.breaker == "half_open"):
            rank.passes += 1
            if rank.passes >= self.needed(rank):
                self.recover(rank, now)
            elif rank.state != "dead":
                self.log_action("probe", rank.name)

    def needed(self, rank):
        if rank.state == "dead":
            return self.rules.dead_passes
        return self.rules.passes_after_wrong_answers if rank.cause in WRONG else 1

    def learn(self, rank, latency_ms):
        rules = self.rules
        if len(rank.samples) < rules.baseline_samples:
            rank.samples.append(latency_ms)
            rank.baseline_ms = median(rank.samples)
        elif rank.state not in OUT:
            rank.baseline_ms += rules.alpha * (latency_ms - rank.baseline_ms)

    def is_spike(self, rank, latency_ms):
        rules = self.rules
        if len(rank.samples) < rules.baseline_samples:
            return False
        normal = min(rank.baseline_ms, rules.anchor_factor * median(rank.samples))
        return latency_ms > max(rules.spike_factor * normal, normal + rules.spike_margin_ms)

    def fail(self, rank, kind, now):
        if rank.state in (*OUT, "dead") and kind == "connect" and rank.cause not in WRONG:
            rank.cause = kind
        if rank.state == "dead":
            rank.passes = 0
        elif rank.state in OUT:
            if kind in WRONG:
                rank.cause = kind
            if rank.breaker == "half_open":
                longer = rank.timeout_s * self.rules.backoff
                rank.timeout_s = min(longer, self.rules.recovery_s_max)
                rank.breaker, rank.opened_at, rank.passes = "open", now, 0
        else:
            rank.failures += 1
            if rank.cause not in WRONG and (rank.cause, kind) != ("connect", "passive"):
                rank.cause = kind
            if rank.state == "healthy":
                rank.state = "suspicious"
                self.log_action("suspicious", rank.name)
            if rank.failures >= self.rules.failures:
                if self.allowed(rank) or self.answers_nothing(rank):
                    self.eject(rank, now)
                else:
                    self.log_action("withheld", rank.name)

    def allowed(self, rank):
        if rank.cause not in LIMITED or self.rules.max_eject >= 1:
            return True
        serving = [other for other in self.ranks.values() if not other.spare]
        out = sum(other.state in OUT for other in serving)
        if rank.cause == "latency_spike" and out + 1 >= len(serving):
            return False
        return out + 1 <= max(1, floor(self.rules.max_eject * len(serving)))

    def answers_nothing(self, rank):
        """Return whether a rank answers nothing while enough other ranks, by number, answer."""
        if rank.cause not in ("timeout", "connect") or rank.silent < 2:
            return False
        serving = [other for other in self.ranks.values() if not other.spare]
        answering = [other for other in serving if other.state == "healthy"]
        return bool(answering) and len(answering) / len(serving) >= self.rules.capacity_floor

    def eject(self, rank, now):
        rank.state, rank.unhealthy_at = "unhealthy", now
        rank.breaker, rank.opened_at, rank.timeout_s = "open", now, self.rules.recovery_s
        rank.passes, rank.tried_at, rank.pause_s = 0, now, self.rules.connect_s
        self.log_action("unhealthy", rank.name, rank.cause)
        spares = [s for s in self.ranks.values() if s.spare and s.state == "healthy"]
        if spares and not rank.spare:
            spares[0].spare, rank.spare = False, True
            self.log_action("promoted", spares[0].name, "for", rank.name)
        if rank.booked and rank.cause != "latency_spike":
            self.drain_now(rank, now)

    def drain_now(self, rank, now):
        rank.state, rank.draining_at = "draining", now
        self.log_action("draining", rank.name)
        if rank.booked:
            self.log_action("plan", rank.name, rank.booked)

    def recover(self, rank, now):
        if rank.state == "draining" and rank.cause in ("connect", "fatal"):
            self.release(rank)
        rank.recovered_at, rank.operator = now, False
        self.heal(rank)

    def heal(self, rank):
        rank.state, rank.failures, rank.cause, rank.breaker = "healthy", 0, None, "closed"
        rank.silent = 0
        self.log_action("healthy", rank.name)

    def report(self, name, outcome, now):
        rank = self.ranks[name]
        if rank.state in OUT:
            return
        if outcome == "fatal":
            rank.cause, rank.failures = "fatal", self.rules.failures
            self.eject(rank, now)
        elif outcome == "ok":
            rank.reported = []
        elif outcome == "failure":
            window = self.rules.passive_window_s
            rank.reported = [at for at in [*rank.reported, now] if now - at <= window]
            if len(rank.reported) >= self.rules.passive_failures:
                rank.reported = []
                self.fail(rank, "passive", now)
            elif len(rank.reported) == 1:
                self.log_action("check", rank.name)

    def book(self, name, count):
        rank = self.ranks[name]
        rank.booked = count
        if rank.state == "draining" and not count:
            self.log_action("drained", name)

    def drain(self, name, now):
        rank = self.ranks[name]
        if rank.state != "dead":
            rank.operator, rank.cause = True, "operator"
            self.drain_now(rank, now)
            if not rank.booked:
                self.log_action("drained", name)

    def undrain(self, name, now):
        if self.ranks[name].operator:
            self.recover(self.ranks[name], now)

    def clear_suspicion(self, name):
        if self.ranks[name].state == "suspicious":
            self.heal(self.ranks[name])

    def leave(self, name):
        del self.ranks[name]

    def join(self, name, spare):
        self.ranks[name] = RankModel(name, spare)

    def register(self, name):
        self.ranks[name] = RankModel(name, self.ranks[name].spare)
        self.log_action("reset", name)
