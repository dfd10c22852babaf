"""Naive twin of the waiting queue: one list that every call searches and sorts.

Policy classes are a ring that is walked step by step; flows have a virtual time.

Policy documents are plain dictionaries as a YAML file would give.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelRequest:
    """Request for a rank.

    path: contents of the prompt's blocks
    header: policy class that the request names
    """

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
    asked: ModelRequest
    cached: int
    policy: dict
    arrived_at: float
    deadline: float
    number: int
    block_size: int
    own_s: float = 0.0
    """Seconds of own work, for requests that wait by the work that is left."""
    legs: tuple[frozenset, ...] = ()
    """Ranks that may serve the request, as last found, for each leg of a pair."""

    @property
    def cost(self):
        return max(1, self.asked.isl - self.cached)

    @property
    def place(self):
        """Sort key; lower goes first."""
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
    """Return the class of a request: by exact name, else by family and bucket."""
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
    """Deficit round robin over the classes of one partition.

    The ring has no requests; callers pass the cost of the head of each class.
    """

    def __init__(self, policies):
        self.policies = policies
        self.credit = {policy["name"]: 0 for policy in policies}
        self.at = 0
        self.here_before = False
        self.released = 0
        """Tokens of all served requests."""

    def turn(self, costs):
        """Return the class that has the turn.

        costs: class -> tokens, for classes that have a head
        """
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
    """Virtual time of the flows of a class: the flow with the earliest begin goes first."""

    def __init__(self):
        self.ends = {}
        """End of the last request of each flow; never forgotten."""
        self.ready_before = set()
        """Flows that had a request with room when a request was last served."""
        self.now, self.earliest = 0.0, float("-inf")

    def begin(self, name, burst):
        """Return the begin of the flow's next request.

        burst: most time before the present at which a flow that was not ready may begin
        """
        earliest = max(self.earliest, self.now - burst)
        end = self.ends.get(name, earliest)
        return end if name in self.ready_before else max(end, earliest)

    def turn(self, firsts, burst):
        """Return the flow that has the turn.

        firsts: flow -> first request with room
        """
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
    """Waiting requests of all partitions."""

    def __init__(self, document):
        self.document = document
        self.waiters: list[Waiter] = []
        self.rings: dict[tuple[str, str], Ring] = {}
        self.flows: dict[tuple[tuple[str, str], str], FlowTimes] = {}

    def of(self, key, name=None, flow=None):
        """Return the waiters of a partition, or of a class or flow there, by urgency."""
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
        """Add a waiter; return the position in the flow, from 1."""
        key, name, flow = waiter.asked.key, waiter.policy["name"], waiter.asked.flow
        if not self.of(key):
            self.rings[key] = Ring(self.document["policy_classes"])
            for policy in self.document["policy_classes"]:
                self.flows[key, policy["name"]] = FlowTimes()
        self.waiters.append(waiter)
        return 1 + self.of(key, name, flow).index(waiter)

    def remove(self, waiter):
        """Remove a waiter.

        A class without requests has no credit; a flow without requests is forgotten.
        """
        self.waiters.remove(waiter)
        key, name, flow = waiter.asked.key, waiter.policy["name"], waiter.asked.flow
        if not self.of(key, name):
            self.rings[key].credit[name] = 0
        if not self.of(key, name, flow):
            self.flows[key, name].leave(flow)

    def firsts(self, key, name, has_room):
        """Return flow -> first request with room, for the flows with the strictest requests."""
        firsts = {}
        for flow in self.flows_of(key, name):
            able = [w for w in self.of(key, name, flow) if has_room(w)]
            if able:
                firsts[flow] = able[0]
        strict = max((w.asked.strict for w in firsts.values()), default=0)
        return {f: w for f, w in firsts.items() if w.asked.strict == strict}

    def take(self, key, has_room, burst):
        """Remove and return the next waiter, or None when no waiter has room."""
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
        """Undo the last take."""
        key, name, flow = waiter.asked.key, waiter.policy["name"], waiter.asked.flow
        weight = waiter.policy.get("fairness_weights", {}).get(flow, 1)
        self.flows[key, name].ends[flow] -= waiter.cost / weight
        self.rings[key].credit[name] += waiter.cost
        self.rings[key].released -= waiter.cost
        self.waiters.append(waiter)

    def full_by(self, waiter, n_workers):
        """Return the class limit that keeps a new request out, or None."""
        policy = waiter.policy
        there = self.of(waiter.asked.key, policy["name"])
        # A named flow leaves as much room free as the flow's requests fill.
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
        """Return the waiters of the same flow if the flow has a name."""
        asked = waiter.asked
        return self.of(asked.key, waiter.policy["name"], asked.flow) if asked.flow else []

    def wait_s(self, waiter, tokens_per_s, burst):
        """Return the least time that a request waits.

        tokens_per_s: rate of one rank
        """
        found = [0.0]
        for legs in [*((leg,) for leg in waiter.legs), waiter.legs]:
            ranks = frozenset().union(*legs)
            # Waiters with room whenever a rank of each of these legs has room.
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
        """Return the tokens before a new request if only `rivals` wait, served drop by drop."""
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
