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
    flow: str = ""
    due_s: float = float("inf")

    @property
    def is_constrained(self):
        return self.pinned is not None or self.allowed is not None or bool(self.required)


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
        return (-self.asked.strict, self.due_at, -score, self.number)

    @property
    def due_at(self):
        return self.arrived_at + self.asked.due_s


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
        self.released = 0
        """Tokens of all that were served."""

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


class FlowRing:
    """The same over the flows of one class, which come and go; the first has its turn.

    Credit is in thousandths of a token.
    """

    def __init__(self):
        self.members = []
        self.credit = {}
        self.here_before = False

    def join(self, name):
        if name not in self.members:
            self.members.append(name)
            self.credit[name] = 0

    def leave(self, name):
        if self.members[0] == name:
            self.here_before = False
        self.members.remove(name)

    def turn(self, costs, weights):
        """Whose turn it is, who pays when it is served."""
        while True:
            name = self.members[0]
            if name in costs:
                if self.credit[name] < 1000 * costs[name] and not self.here_before:
                    self.credit[name] += round(1000 * weights.get(name, 1))
                self.here_before = True
                if self.credit[name] >= 1000 * costs[name]:
                    return name
            self.members.append(self.members.pop(0))
            self.here_before = False


class WaitingModel:
    """Everybody who waits, in all partitions."""

    def __init__(self, document):
        self.document = document
        self.waiters: list[Waiter] = []
        self.rings: dict[tuple[str, str], Ring] = {}
        self.flows: dict[tuple[tuple[str, str], str], FlowRing] = {}

    def of(self, key, name=None, flow=None):
        """Those of a partition, of one class or of one flow of it, by urgency."""
        return sorted(
            (
                w
                for w in self.waiters
                if w.asked.key == key
                and name in (None, w.policy["name"])
                and flow in (None, w.asked.flow)
            ),
            key=lambda waiter: waiter.place,
        )

    def flows_of(self, key, name):
        return {w.asked.flow for w in self.of(key, name)}

    def add(self, waiter):
        """Returns its position in its flow, from 1."""
        key, name, flow = waiter.asked.key, waiter.policy["name"], waiter.asked.flow
        if not self.of(key):
            self.rings[key] = Ring(self.document["policy_classes"])
            for policy in self.document["policy_classes"]:
                self.flows[key, policy["name"]] = FlowRing()
        self.flows[key, name].join(flow)
        self.waiters.append(waiter)
        return 1 + self.of(key, name, flow).index(waiter)

    def remove(self, waiter):
        """A class without requests has no credit; a flow without requests is forgotten."""
        self.waiters.remove(waiter)
        key, name, flow = waiter.asked.key, waiter.policy["name"], waiter.asked.flow
        if not self.of(key, name):
            self.rings[key].credit[name] = 0
        if not self.of(key, name, flow):
            self.flows[key, name].leave(flow)

    def heads(self, key, has_room):
        """class -> the first with room of the flow whose turn it is, among the flows whose first
        with room is most strict.
        """
        heads = {}
        for policy in self.document["policy_classes"]:
            name = policy["name"]
            firsts = {}
            for flow in self.flows_of(key, name):
                able = [w for w in self.of(key, name, flow) if has_room(w)]
                if able:
                    firsts[flow] = able[0]
            if firsts:
                strict = max(w.asked.strict for w in firsts.values())
                costs = {f: w.cost for f, w in firsts.items() if w.asked.strict == strict}
                weights = policy.get("fairness_weights", {})
                heads[name] = firsts[self.flows[key, name].turn(costs, weights)]
        return heads

    def take(self, key, has_room):
        """The next to go, taken out; None when nobody who waits has room."""
        heads = self.heads(key, has_room)
        if not heads:
            return None
        ring = self.rings[key]
        name = ring.turn({name: waiter.cost for name, waiter in heads.items()})
        head = heads[name]
        self.flows[key, name].credit[head.asked.flow] -= 1000 * head.cost
        ring.released += head.cost
        self.remove(head)
        if not self.of(key, name):
            ring.go_on()
        return head

    def full_by(self, waiter, n_workers):
        """Which limit of its class keeps a new request out, if any."""
        policy = waiter.policy
        there = self.of(waiter.asked.key, policy["name"])
        # A named flow leaves as much free as it has.
        there += self.own(waiter)
        for kind, size in (
            ("request", lambda w: 1),
            ("raw_isl_token", lambda w: w.asked.isl),
            ("cached_token", lambda w: w.cached),
        ):
            limit = policy.get(f"{kind}_queue_limit_per_worker")
            if limit is not None and sum(map(size, [*there, waiter])) > limit * n_workers:
                return kind
        return None

    def own(self, waiter):
        """Those of the same flow, if it has a name."""
        asked = waiter.asked
        return self.of(asked.key, waiter.policy["name"], asked.flow) if asked.flow else []

    def tokens_before(self, waiter):
        """What goes before a new request, at most."""
        key, mine = waiter.asked.key, waiter.policy
        names = {w.policy["name"] for w in self.of(key)} | {mine["name"]}
        quanta = {
            p["name"]: p.get("quantum", 1)
            for p in self.document["policy_classes"]
            if p["name"] in names
        }
        share = quanta[mine["name"]] / sum(quanta.values())
        others = sum(w.cost for w in self.of(key) if w.policy is not mine)
        in_class = 0
        for flow in self.flows_of(key, mine["name"]):
            there = self.of(key, mine["name"], flow)
            before = [w for w in there if w.asked.strict >= waiter.asked.strict]
            if not waiter.asked.strict:
                before = there
            in_class += sum(w.cost for w in there) * len(before) / len(there)
        found = [others + in_class, in_class / share]
        if not waiter.asked.strict:
            flow = waiter.asked.flow
            weights = dict.fromkeys(self.flows_of(key, mine["name"]) | {flow}, 1)
            weights |= {f: w for f, w in mine.get("fairness_weights", {}).items() if f in weights}
            there = self.of(key, mine["name"], flow)
            before = [w for w in there if w.place < waiter.place]
            mean = sum(w.cost for w in there) / len(there) if there else 0
            own = waiter.cost + mean * len(before)
            found.append(own / share / (weights[flow] / sum(weights.values())))
        return min(found)
