"""Naive twin of the waiting queue: one list, searched and sorted whenever somebody asks, and a ring
of policy classes that is walked step by step.

Policy documents are the plain dictionaries that a YAML file would give.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """A request for a rank.  path: contents of its blocks;  header: the policy class it names."""

    name: str
    key: tuple[str, str]
    path: tuple[int, ...]
    isl: int
    pinned: tuple[int, int] | None = None
    allowed: frozenset[int] | None = None
    required: frozenset[str] = frozenset()
    strict: int = 0
    jump: float = 0.0
    tier: str | None = None
    timeout_s: float = float("inf")
    reserves: bool = False
    reservation_id: str | None = None
    header: str | None = None


@dataclass
class Waiter:
    asked: Asked
    cached: int
    policy: dict
    arrived_at: float
    deadline: float
    number: int
    block_size: int
    own_s: float = 0.0
    """What its own work takes, for those that wait by the work that is left."""

    @property
    def cost(self):
        return max(1, self.asked.isl - self.cached)

    @property
    def place(self):
        """Lower goes first."""
        jump = max(0.0, self.asked.jump)
        score = {
            "fcfs": jump - self.arrived_at,
            "lcfs": jump + self.arrived_at,
            "wspt": (1.0 + jump) / self.cost,
            "work": jump - self.arrived_at - self.own_s,
        }[self.policy.get("queue_policy", "fcfs")]
        return (-self.asked.strict, -score, self.number)


def policy_of(document, header, uncached):
    """The class of a request: by its exact name, else by family and bucket."""
    for policy in document["policy_classes"]:
        if policy.get("policy_family") is None and policy["name"] == header:
            return policy
    families = {p.get("policy_family") for p in document["policy_classes"]} - {None}
    family = header if header in families else document["default_policy_family"]
    fitting = [b for b in document["uncached_isl_buckets"] if b["min_tokens"] <= uncached]
    bucket = max(fitting, key=lambda b: b["min_tokens"])["bucket"]
    (found,) = [
        p
        for p in document["policy_classes"]
        if (p.get("policy_family"), p.get("cache_bucket")) == (family, bucket)
    ]
    return found


class Ring:
    """Deficit round robin over the classes of one partition.  It knows nothing of requests: it is
    told what the head of each class costs.
    """

    def __init__(self, policies):
        self.policies = policies
        self.credit = {policy["name"]: 0 for policy in policies}
        self.at = 0
        self.here_before = False

    def turn(self, costs):
        """The class whose turn it is.  costs: class -> tokens, for classes that have a head."""
        assert costs
        while True:
            policy = self.policies[self.at]
            name = policy["name"]
            if name in costs:
                if self.credit[name] < costs[name] and not self.here_before:
                    self.credit[name] += policy.get("quantum", 1)
                if self.credit[name] >= costs[name]:
                    self.credit[name] -= costs[name]
                    self.here_before = True
                    return name
            self.go_on()

    def go_on(self):
        self.at = (self.at + 1) % len(self.policies)
        self.here_before = False


class WaitingModel:
    """Everybody who waits, in all partitions."""

    def __init__(self, document):
        self.document = document
        self.waiters: list[Waiter] = []
        self.rings: dict[tuple[str, str], Ring] = {}

    def of(self, key, name=None):
        """Those of a partition, or of one class of it, first to go first."""
        found = [w for w in self.waiters if w.asked.key == key]
        return sorted(
            (w for w in found if name in (None, w.policy["name"])), key=lambda waiter: waiter.place
        )

    def add(self, waiter):
        """Returns its position in its class, from 1."""
        key = waiter.asked.key
        if not self.of(key):
            self.rings[key] = Ring(self.document["policy_classes"])
        self.waiters.append(waiter)
        return 1 + self.of(key, waiter.policy["name"]).index(waiter)

    def remove(self, waiter):
        """A class without requests has no credit."""
        self.waiters.remove(waiter)
        key, name = waiter.asked.key, waiter.policy["name"]
        if not self.of(key, name):
            self.rings[key].credit[name] = 0

    def heads(self, key, has_room):
        """class -> the first of it that has room."""
        heads = {}
        for policy in self.document["policy_classes"]:
            able = [w for w in self.of(key, policy["name"]) if has_room(w)]
            if able:
                heads[policy["name"]] = able[0]
        return heads

    def take(self, key, has_room):
        """The next to go, taken out; None when nobody who waits has room."""
        heads = self.heads(key, has_room)
        if not heads:
            return None
        ring = self.rings[key]
        name = ring.turn({name: waiter.cost for name, waiter in heads.items()})
        self.remove(heads[name])
        if not self.of(key, name):
            ring.go_on()
        return heads[name]

    def full_by(self, waiter, n_workers):
        """Which limit of its class keeps a new request out, if any."""
        policy = waiter.policy
        there = self.of(waiter.asked.key, policy["name"])
        for kind, size in (
            ("request", lambda w: 1),
            ("raw_isl_token", lambda w: w.asked.isl),
            ("cached_token", lambda w: w.cached),
        ):
            limit = policy.get(f"{kind}_queue_limit_per_worker")
            if limit is not None and sum(map(size, [*there, waiter])) > limit * n_workers:
                return kind
        return None
