"""Tests of the values read from engines' Prometheus texts, and of rejected values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.workers import metrics_parser
from select_service.core.workers.engine_load import EngineReading
from select_service.core.workers.metrics_parser import (
    LINE_BYTES_MAX,
    LINES_BYTES_ALWAYS,
    LINES_BYTES_MAX,
    RANK_LINES_BYTES_MAX,
    SIGNALS,
    MetricsTextError,
    parse_in_steps,
)
from tests.builders.engine_metric_texts import recorded, vllm
from tests.builders.steps import longest_step, result_of


def read_all(text, dp_ranks):
    return result_of(parse_in_steps(text, dp_ranks))


def usages(text, dp_ranks):
    return {dp_rank: reading.kv_usage for dp_rank, reading in read_all(text, dp_ranks).items()}


def refusal(text, dp_ranks=(0,)):
    with pytest.raises(MetricsTextError) as caught:
        read_all(text, dp_ranks)
    return caught.value.result, str(caught.value)


@pytest.mark.parametrize(("engine", "deferred"), [("vllm-0.33.0", 1), ("sglang-0.5.23", 0)])
def test_a_recorded_text_of_one_rank_is_read(engine, deferred):
    readings = read_all(recorded(f"{engine}-1"), (0,))
    assert readings == {0: EngineReading(0.625, 3 + deferred, 7)}


@pytest.mark.parametrize(("engine", "deferred"), [("vllm-0.33.0", 1), ("sglang-0.5.23", 0)])
def test_a_recorded_text_of_two_ranks_is_read(engine, deferred):
    readings = read_all(recorded(f"{engine}-2"), (0, 1))
    assert readings == {
        0: EngineReading(0.625, 3 + deferred, 7),
        1: EngineReading(0.75, 5 + deferred, 8),
    }


class RecordingPattern:
    """Expression that records the largest number of bytes searched."""

    def __init__(self, expression):
        self.expression, self.most = expression, 0

    def findall(self, text):
        self.most = max(self.most, len(text))
        return self.expression.findall(text)


@pytest.mark.parametrize("padding", [b"\n", b"# HELP some words\n", b"\nvllm:num_requests_r"])
def test_a_long_text_is_looked_through_in_short_steps(padding, monkeypatch):
    noting = RecordingPattern(metrics_parser._LINES)
    monkeypatch.setattr(metrics_parser, "_LINES", noting)
    text = padding * (400_000 // len(padding)) + b"\n" + vllm(0.25) + padding * 1000 + b"\n"
    assert usages(text, (0,)) == {0: 0.25}
    assert noting.most <= metrics_parser.SLICE_BYTES + 1


@given(st.lists(st.sampled_from([b"\n", b"# HELP", b" x" * 30, vllm(0.5), b"\n" + vllm(0.75)])))
def test_the_same_lines_are_found_at_any_cut_of_a_text(parts):
    text = b"".join(parts) + b"\n"
    found = metrics_parser._LINES.findall(b"\n" + text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_parser, "SLICE_BYTES", 50)
        lines = metrics_parser.find_relevant_lines(text, LINES_BYTES_MAX)
        assert (result_of(lines) if found else b"") == b"".join(found)


@pytest.mark.parametrize(
    ("labels", "dp_ranks", "expected"),
    [
        ((0, 1), (4, 5), {4: 0.0, 5: 0.1}),
        ((4, 5), (4, 5), {4: 0.4, 5: 0.5}),
        ((0, 1), (1, 2), {1: 0.0, 2: 0.1}),
        ((0, 1, 2, 3), (2, 3), {2: 0.2, 3: 0.3}),
        ((0,), (0, 1), {0: 0.0}),
        ((3,), (0,), {0: 0.3}),
        ((0,), (3,), {3: 0.0}),
    ],
)
def test_labels_are_ranks_if_possible_and_positions_otherwise(labels, dp_ranks, expected):
    text = b"".join(vllm(label / 10, engine=label) for label in labels)
    assert usages(text, dp_ranks) == expected


def test_labels_of_other_ranks_are_ignored():
    assert refusal(vllm(0.5, engine=7) + vllm(0.5, engine=8), (0, 1))[0] == "no_metric"


def test_a_sample_without_a_label_counts_for_every_rank():
    assert usages(b"sglang:token_usage 0.25\n", (3, 4)) == {3: 0.25, 4: 0.25}


def test_labels_that_only_the_other_engine_has_are_no_ranks():
    assert usages(b'sglang:token_usage{engine="blue"} 0.25\n', (0,)) == {0: 0.25}


def test_the_largest_of_several_samples_counts():
    text = b"".join(
        b'sglang:token_usage{dp_rank="0",tp_rank="%d"} %s\n' % (i, value)
        for i, value in enumerate([b"0.25", b"0.75", b"0.5"])
    )
    assert usages(text, (0,)) == {0: 0.75}


def test_the_older_name_of_the_usage_is_known():
    assert usages(b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', (0,)) == {0: 0.5}


def test_metrics_that_begin_with_a_known_name_are_others():
    text = b'vllm:num_requests_waiting_by_reason{engine="0"} 9\n' + vllm(0.5, waiting=2)
    assert read_all(text, (0,))[0].requests_waiting == 2


@pytest.mark.parametrize("usage", ["NaN", "-0.01", "1.01", "+Inf", "-Inf", "9" * 400])
def test_a_usage_that_cannot_be_is_no_signal_and_spares_the_others(usage):
    assert read_all(vllm(usage, 2, 3), (0,)) == {0: EngineReading(None, 2, 3)}


@pytest.mark.parametrize("count", ["NaN", "-1", "+Inf", "2.5", "1e300"])
def test_a_count_that_cannot_be_is_no_signal_and_spares_the_others(count):
    assert read_all(vllm(0.5, count, 3), (0,)) == {0: EngineReading(0.5, None, 3)}


def test_one_impossible_sample_spoils_the_signal_of_its_rank_only():
    text = vllm(0.5) + vllm("NaN") + vllm(0.25, engine=1)
    assert usages(text, (0, 1)) == {0: None, 1: 0.25}


def test_a_text_without_one_credible_value_is_unreadable():
    assert refusal(vllm("NaN", "NaN", "NaN"))[0] == "unreadable"


@pytest.mark.parametrize(
    "text", [b"", b"<html>sign in</html>\n", b"\x00\xff\n", b"# vllm:num_requests_waiting 3\n"]
)
def test_a_text_without_known_metrics_is_named_so(text):
    assert refusal(text)[0] == "no_metric"


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting twelve",
        b"vllm:num_requests_waiting twelve{} 1",
        b'vllm:num_requests_waiting{engine="0" 3',
        b'vllm:num_requests_waiting{ ="0"} 3',
        b'vllm:num_requests_waiting{engine="first"} 3',
        b'vllm:num_requests_waiting{engine="\xff"} 3',
        b'vllm:num_requests_waiting{engine="0"} 3 ' + b"9" * 400,
    ],
)
def test_one_broken_line_makes_the_text_unreadable(line):
    assert refusal(vllm(0.5) + line + b" \n")[0] == "unreadable"


def test_a_text_that_was_cut_short_is_unreadable():
    result, error = refusal(vllm(0.5, 1, 12)[:-2])
    assert (result, error) == ("unreadable", "the answer ends in the middle of a line")


@pytest.mark.parametrize(
    "text",
    [
        b"vllm:num_requests_waiting{" + b"a=," * LINE_BYTES_MAX + b"} 1\n",
        b"vllm:num_requests_waiting 1\n" * (LINES_BYTES_MAX // 20),
    ],
)
def test_more_metrics_than_can_be_are_not_parsed(text):
    assert refusal(text, tuple(range(100))) == (
        "unreadable",
        "the relevant metrics are larger than the limit",
    )


def test_a_rank_has_no_more_lines_than_a_rank_can_have():
    lines = b"vllm:num_requests_waiting 1\n" * (3 * LINES_BYTES_ALWAYS // 2 // 28)
    assert refusal(lines)[0] == "unreadable"
    ranks = tuple(range(2 * LINES_BYTES_ALWAYS // RANK_LINES_BYTES_MAX))
    assert read_all(lines, ranks)[1].requests_waiting == 1


ROWS = [
    b"vllm:num_requests_waiting 1\n",
    b'vllm:num_requests_waiting{engine="0"} 1\n',
    b'vllm:num_requests_waiting{a="' + b'\\"' * 1900 + b'"} 1\n',
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_no_step_of_many_lines_is_a_long_one(row):
    """Check that the longer of two texts has more steps, but no longer ones."""
    ranks = tuple(range(64))
    few, many = (row * (size // len(row)) for size in (30_000, 240_000))
    assert longest_step(parse_in_steps(many, ranks)) <= 1.5 * longest_step(
        parse_in_steps(few, ranks)
    )


NAMES = st.sampled_from([name.encode() for name in SIGNALS])
SCRAPS = st.sampled_from(
    [bytes([byte]) for byte in b'{}"\\,= \t\r\x0b#_a1\xff']
    + [b'{engine="0"} ', b'dp_rank="1"', b"0.5", b"-1", b"NaN", b"Inf", b"1e999", b"\xc3\xa9"]
)
LINES = st.builds(
    lambda name, scraps: b"".join([name, *scraps, b"\n"]), NAMES, st.lists(SCRAPS, max_size=12)
)


@given(
    st.one_of(st.binary(), st.lists(LINES, max_size=6).map(b"".join)),
    st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple),
)
def test_any_bytes_give_credible_readings_or_a_refusal(text, dp_ranks):
    try:
        readings = read_all(text, dp_ranks)
    except MetricsTextError:
        return
    assert readings.keys() <= set(dp_ranks)
    for usage, waiting, running in readings.values():
        assert usage is None or 0 <= usage <= 1
        assert all(count is None or count >= 0 for count in (waiting, running))
