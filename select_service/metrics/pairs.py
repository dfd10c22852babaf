"""Metrics of pairs: prefill and decode on two ranks."""

from collections.abc import Sequence

from select_service.core.pairs.pair_report import PairReport
from select_service.metrics.series import FamilyRow

PAIRS: Sequence[FamilyRow[PairReport]] = (
    FamilyRow(
        "pair_decisions_total",
        "Pairs chosen, by path: remote (two ranks) or local (one rank for both).",
        lambda p: p.decisions,
        ("path",),
    ),
    FamilyRow(
        "pair_prompt_tokens_total",
        "Prompt tokens of chosen pairs, by what the rank of the prefill held of them at the "
        "decision: cached, or to be computed; cached divided by both is the predicted hit rate.",
        lambda p: p.prompts,
        ("part",),
    ),
    FamilyRow(
        "pair_legs",
        "Live legs, booked here and by replicas.",
        lambda p: p.live,
        ("leg",),
    ),
    FamilyRow(
        "pair_lost_legs",
        "Pairs whose prefill leg was lost with its rank, and whose callers have not moved it.",
        lambda p: p.lost_legs,
    ),
    FamilyRow(
        "pair_transfers",
        "Transfers of KV blocks that count on a link now: booked, without a first token.",
        lambda p: p.transfers,
    ),
    FamilyRow(
        "pair_link_tokens",
        "Tokens of booked pairs that have to leave and to enter a host; the 64 hosts with most, "
        "the others summed.",
        lambda p: p.links,
        ("host", "direction"),
    ),
    FamilyRow(
        "pair_moved_tokens_total",
        "Prompt tokens whose KV blocks were booked to move, by the smallest place that both ranks "
        "share: host, domain or network.",
        lambda p: p.moved,
        ("level",),
    ),
    FamilyRow(
        "pair_first_tokens_total",
        "Transfers by their end: first token reported, or forgotten 2 s after the prefill.",
        lambda p: {"reported": p.counts.first_tokens, "unreported": p.counts.unreported},
        ("end",),
    ),
    FamilyRow(
        "pair_moves_measured_total",
        "Transfers of which the end of the prefill and the first token were reported, with "
        "declared prefill speeds.",
        lambda p: p.counts.measured,
    ),
    FamilyRow(
        "pair_move_seconds_total",
        "Seconds of these transfers: predicted by the price of the move, and observed from the end "
        "of the prefill to the first token, which includes a step of the decode engine.",
        lambda p: {"predicted": p.counts.predicted_s, "observed": p.counts.observed_s},
        ("kind",),
    ),
)
