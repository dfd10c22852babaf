"""Exchange of pairs with other replicas: received pairs and legs, and records for peers' lists."""

from indexer.hashing.block_hashing import Hashes
from select_service.core.decision_maker import PlacementRequest
from select_service.core.load.ledger import Ledger
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.pairs.pair_book import BookedPair, PairBook
from select_service.core.pairs.pair_bookings import make_transfer, record_of_job
from select_service.core.pairs.pair_links import PairLinks
from select_service.core.pairs.pair_records import prompt_of_record, request_of_record
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.pairs import PairRecord


class PairReplication:
    """Receiver of the pairs of peers."""

    def __init__(
        self, ledger: Ledger, book: PairBook, links: PairLinks, config: RouterConfig
    ) -> None:
        self._ledger = ledger
        self._book = book
        self._links = links
        self._config = config

    def receive_pair(
        self, partition: Partition, reservation_id: str, record: PairRecord, blocks: Hashes
    ) -> None:
        """Enter a pair that a peer booked.

        blocks: uint64[n], block hashes of the prompt; empty means unknown
        """
        decode = self._ledger.find_active(reservation_id)
        if decode is None:
            return
        prompt = prompt_of_record(record, decode, blocks)
        request, config = request_of_record(record, decode), self._config
        job = PlacementRequest(partition, prompt, request, config)
        self._book.learn_pair(reservation_id, BookedPair(job, None, record.move_tokens))
        self._count_transfer(reservation_id)

    def receive_leg(self, reservation_id: str, tenant_id: str) -> None:
        """Enter a prefill leg that a peer booked or moved, and the transfer from there."""
        self._book.add_leg(reservation_id, tenant_id)
        pair = self._book.find_pair(reservation_id)
        if pair is not None and pair.answer is not None:
            # A peer has moved the leg: the answer names the former rank.
            moved = BookedPair(pair.job, None, pair.move_tokens)
            self._book.learn_pair(reservation_id, moved)
        self._count_transfer(reservation_id)

    def _count_transfer(self, reservation_id: str) -> None:
        """Count the transfer of a peer's pair once both legs are known."""
        ledger, pair = self._ledger, self._book.find_pair(reservation_id)
        prefill = ledger.find_active(prefill_leg_of(reservation_id))
        decode = ledger.find_active(reservation_id)
        if pair is None or prefill is None or decode is None or not pair.move_tokens:
            return
        if decode.is_prefilling and prefill.account is decode.account:
            slots = prefill.slot, decode.slot
            placer = self._links.links_of(pair.job.partition).placer
            transfer = make_transfer(placer, slots, pair.move_tokens)
            self._book.set_transfer(reservation_id, transfer)

    def find_record(self, reservation_id: str) -> PairRecord | None:
        """Return the request behind a pair, for the lists of replicas."""
        pair = self._book.find_pair(reservation_id)
        if pair is None:
            return None
        return record_of_job(pair.job, self._book.waiting_tokens(reservation_id))
