"""Naive twin of the hold: the work left on ranks decides about waiting requests.

Each sum is made anew from a list of prefills.
"""

from dataclasses import dataclass

from select_service.core.placement.router_config import RouterConfig
from tests.models import work_model
from tests.models.admission import AdmissionModel
from tests.models.waiting import ModelRequest

HOLD_TOKENS = 8192
TOKEN_S = 0.1


@dataclass
class Unfinished:
    """Prefill in the account of a rank.

    path: contents of the prompt's blocks; None means that no progress is followed
    """

    name: str
    key: tuple[str, str]
    rank: tuple[int, int]
    work: int
    cached: int
    path: tuple[int, ...] | None


class HoldModel(AdmissionModel):
    """Twin that checks the set of eligible ranks, but not the choice among these ranks."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.unfinished: list[Unfinished] = []
        self.reported = 1.0
        self.tells = True
        self.upcoming = None

    # --- the account

    def reserve(self, name, key, rank, hashes, prefill_tokens, isl_tokens, now):
        work, cached, path = self.upcoming or (max(1, prefill_tokens), 0, None)
        super().reserve(name, key, rank, hashes, prefill_tokens, isl_tokens, now)
        self.unfinished.append(Unfinished(name, key, rank, work, cached, path))

    def ends(self, name, is_reported):
        """End the prefill of a reservation, if that prefill is unfinished."""
        for prefill in [p for p in self.unfinished if p.name == name]:
            self.unfinished.remove(prefill)
            if self.tells:
                self.reported += ((1.0 if is_reported else 0.0) - self.reported) / 64

    def free(self, name):
        super().free(name)
        self.ends(name, False)

    def put(self, worker_id, worker):
        self.tells = False
        super().put(worker_id, worker)
        self.tells = True

    def delete_worker(self, worker_id):
        self.tells = False
        super().delete_worker(worker_id)
        self.tells = True

    def there(self, rank, path):
        held = set().union(*self.stored.get(rank, {}).values())
        return next((n for n in range(len(path)) if path[: n + 1] not in held), len(path))

    def work_left(self, key, rank):
        mine = [p for p in self.unfinished if (p.key, p.rank) == (key, rank)]
        left = sum(p.work for p in mine)
        if not mine or mine[0].path is None:
            return left
        oldest = mine[0]
        done = self.block_size(key) * (self.there(rank, oldest.path) - oldest.cached)
        return left - min(max(done, 0), oldest.work)

    def own_work(self, asked, rank):
        """Return the own work and the cached blocks of a prompt on a rank."""
        found = self.state(asked, rank)
        depths = (found.device, found.host, found.disk)
        there = work_model.RankState(*depths, found.leading_run, 0, 0, 0, 0)
        size = self.block_size(asked.key)
        return work_model.own_work(there, asked.isl, size, RouterConfig()), sum(depths)

    def callers_work(self, key, rank, path, isl, tokens):
        """Return work, cached blocks and path of a reservation on a rank that the caller chose."""
        asked = ModelRequest(name="", key=key, path=path, isl=isl)
        own = isl - self.block_size(key) * self.leading_run(asked, rank)
        return max(1, min(tokens, own)), 0, None

    # --- the hold

    def unloaded(self, key, policy):
        ranks = self.ranks(key)
        if policy.get("queue_policy") != "work":
            return super().unloaded(key, policy)
        if self.reported < 0.5:
            return ranks
        tokens = policy.get("prefill_busy_threshold", HOLD_TOKENS)
        part = policy.get("prefill_busy_threshold_frac", 0.0)
        most = {rank: max(tokens, part * self.workers[rank[0]].batch_tokens) for rank in ranks}
        return {rank for rank in ranks if self.work_left(key, rank) <= most[rank]}

    def own_s(self, asked, free):
        return TOKEN_S * min(self.own_work(asked, rank)[0] for rank in free)

    def cost(self, asked, rank, eligible):
        return 0.0

    def decide(self, asked, eligible, now):
        if asked.name in self.told:
            rank, _, _ = self.told[asked.name]
            self.upcoming = (*self.own_work(asked, rank), asked.path)
        outcome = super().decide(asked, eligible, now)
        self.upcoming = None
        return outcome
