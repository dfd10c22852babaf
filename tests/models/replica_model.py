"""Naive twin of replica events: one dictionary of bookings, one of ended reservations."""

EARLY_S = 60.0
ENDING_S = 600.0


class ReplicaModel:
    """Bookings of one partition; the twin mirrors no structure of the product.

    ranks: existing ranks
    """

    def __init__(self, own, ranks, ttl_s):
        self.own, self.ranks, self.ttl_s = own, set(ranks), ttl_s
        self.held = {}  # id -> dict(rank, hashes, tokens, prefilling, origin, renewed, work)
        self.ended = {}  # id -> (how, when, reporting replica)

    def how_it_ended(self, name, now):
        how, when, _ = self.ended.get(name, (None, 0.0, None))
        memory_s = ENDING_S if how == "freed" else EARLY_S
        return how if how and now < when + memory_s else None

    def admitted(self, name, rank, hashes, tokens, origin, now, work):
        if rank not in self.ranks:
            return "unknown_rank"
        if name in self.held and self.held[name]["rank"] == rank:
            return "known"
        how = self.how_it_ended(name, now)
        if how == "freed early":
            return "freed_before"
        over = how == "prefilled early"
        work = 0 if over else work
        self.book(name, rank, hashes, 0 if over else tokens, not over, origin, now, work)
        if how != "freed" or self.ended[name][2] == origin:
            # Respected once, or about another booking; else kept until the two replicas have
            # compared.
            self.ended.pop(name, None)
        return None

    def book(self, name, rank, hashes, tokens, prefilling, origin, now, work):
        self.held[name] = {
            "rank": rank,
            "hashes": set(hashes),
            "tokens": tokens,
            "prefilling": prefilling,
            "origin": origin,
            "renewed": now,
            "work": work,
        }

    def prefilled(self, name, by, now):
        if name not in self.held:
            if self.how_it_ended(name, now) is None:
                self.ended[name] = ("prefilled early", now, by)
            return "not_booked"
        self.held[name].update(tokens=0, prefilling=False, renewed=now, work=0)
        return None

    def record_freed(self, name, by, now):
        if name not in self.held:
            if self.how_it_ended(name, now) != "freed":
                self.ended[name] = ("freed early", now, by)
            return "not_booked"
        del self.held[name]
        self.ended[name] = ("freed", now, by)
        return None

    def local(self, name, rank, hashes, tokens, now, work):
        """Book an own admission; a remembered end of the name concerns an older booking."""
        self.book(name, rank, hashes, tokens, True, None, now, work)
        self.ended.pop(name, None)

    def expire(self, now):
        over = [n for n, b in self.held.items() if b["renewed"] + self.ttl_s <= now]
        for name in over:
            del self.held[name]

    def loads(self):
        """Return rank -> (prefill tokens, distinct blocks, requests)."""
        rows = {}
        for rank in self.ranks:
            here = [b for b in self.held.values() if b["rank"] == rank]
            blocks = set().union(*(b["hashes"] for b in here))
            rows[rank] = (sum(b["tokens"] for b in here), len(blocks), len(here))
        return rows
