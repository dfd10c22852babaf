"""Naive twin of the waiting queue: one list, searched and sorted whenever somebody asks, a ring of
policy classes that is walked step by step, and a virtual time of flows.

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
    legs: tuple[frozenset, ...] = ()
    """Ranks that may serve it, as last found; of each leg of a pair."""

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
    def ranks(self):
        """Ranks of all legs."""
        return frozenset().union(*self.legs)

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


class FlowTimes:
    """Virtual time of the flows of one class: whose next request begins first is served first."""

    def __init__(self):
        self.ends = {}
        """When the last request of a flow ends; never forgotten."""
        self.ready_before = set()
        """Who had a request with room when somebody was served last."""
        self.now, self.earliest = 0.0, float("-inf")

    def begin(self, name, burst):
        """burst: how long before the present a flow may begin that was not ready"""
        earliest = max(self.earliest, self.now - burst)
        end = self.ends.get(name, earliest)
        return end if name in self.ready_before else max(end, earliest)

    def turn(self, firsts, burst):
        """Whose turn it is.  firsts: flow -> its first with room"""
        return min(firsts, key=lambda name: (self.begin(name, burst), firsts[name].place))

    def pay(self, name, firsts, length, burst):
        begins = {each: self.begin(each, burst) for each in firsts}
        self.earliest = max(self.earliest, self.now - burst)
        self.ends |= begins
        self.ready_before = set(firsts)
        self.now = max(self.now, begins[name])
        self.ends[name] += length

    def leave(self, name):
        self.ready_before.discard(name)


class WaitingModel:
    """Everybody who waits, in all partitions."""

    def __init__(self, document):
        self.document = document
        self.waiters: list[Waiter] = []
        self.rings: dict[tuple[str, str], Ring] = {}
        self.flows: dict[tuple[tuple[str, str], str], FlowTimes] = {}

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
                self.flows[key, policy["name"]] = FlowTimes()
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

    def firsts(self, key, name, has_room):
        """flow -> its first with room, of the flows of a class where that is most strict."""
        firsts = {}
        for flow in self.flows_of(key, name):
            able = [w for w in self.of(key, name, flow) if has_room(w)]
            if able:
                firsts[flow] = able[0]
        strict = max((w.asked.strict for w in firsts.values()), default=0)
        return {f: w for f, w in firsts.items() if w.asked.strict == strict}

    def take(self, key, has_room, burst):
        """The next to go, taken out; None when nobody who waits has room."""
        names = [policy["name"] for policy in self.document["policy_classes"]]
        able = {name: self.firsts(key, name, has_room) for name in names}
        heads = {n: f[self.flows[key, n].turn(f, burst)] for n, f in able.items() if f}
        if not heads:
            return None
        ring = self.rings[key]
        name = ring.turn({name: waiter.cost for name, waiter in heads.items()})
        head = heads[name]
        weight = head.policy.get("fairness_weights", {}).get(head.asked.flow, 1)
        self.flows[key, name].pay(head.asked.flow, able[name], head.cost / weight, burst)
        ring.released += head.cost
        self.remove(head)
        if not self.of(key, name):
            ring.go_on()
        return head

    def give_back(self, waiter):
        """As if the last one taken had not been."""
        key, name, flow = waiter.asked.key, waiter.policy["name"], waiter.asked.flow
        weight = waiter.policy.get("fairness_weights", {}).get(flow, 1)
        self.flows[key, name].ends[flow] -= waiter.cost / weight
        self.rings[key].credit[name] += waiter.cost
        self.rings[key].released -= waiter.cost
        self.waiters.append(waiter)

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

    def wait_s(self, waiter, tokens_per_s, burst):
        """How long it waits at least.  tokens_per_s: of one rank"""
        found = [0.0]
        for legs in [*((leg,) for leg in waiter.legs), waiter.legs]:
            ranks = frozenset().union(*legs)
            # Who has room whenever one of each of these legs has.
            rivals = [
                w
                for w in self.of(waiter.asked.key)
                if all(any(leg <= each for leg in legs) for each in w.legs)
            ]
            for some in ([w for w in rivals if w.ranks == ranks], rivals):
                n_ranks = len(ranks.union(*(w.ranks for w in some)))
                found.append(self.tokens_before(waiter, some, burst) / (tokens_per_s * n_ranks))
        return max(found)

    def tokens_before(self, waiter, rivals, burst):
        """What goes before a new request, if only some others wait, served drop by drop."""
        mine, asked = waiter.policy, waiter.asked
        there = [w for w in rivals if w.policy is mine]
        weights = mine.get("fairness_weights", {})
        urgent = sum(w.cost for w in there if w.asked.strict > asked.strict)
        equal = [w for w in there if w.asked.strict == asked.strict]
        before = sum(w.cost for w in equal if w.asked.flow == asked.flow and w.place < waiter.place)
        in_class = urgent + before
        for flow in {w.asked.flow for w in equal} - {asked.flow}:
            times = self.flows[asked.key, mine["name"]]
            begin = times.begin(asked.flow, burst) + before / weights.get(asked.flow, 1)
            share = max(0, begin - times.begin(flow, burst)) * weights.get(flow, 1)
            in_class += min(share, sum(w.cost for w in equal if w.asked.flow == flow))
        total = in_class
        for policy in self.document["policy_classes"]:
            if policy is not mine:
                share = in_class * policy.get("quantum", 1) / mine.get("quantum", 1)
                total += min(share, sum(w.cost for w in rivals if w.policy is policy))
        return total
