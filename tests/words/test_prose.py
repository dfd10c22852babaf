"""Tests that names, docstrings, comments and pages keep the limits of `tests.words.prose`."""

import pytest

from tests.words import prose


@pytest.fixture(scope="module")
def code() -> prose.Measured:
    return prose.measure_code(prose.ROOT / name for name in prose.CODE)


@pytest.fixture(scope="module")
def tests() -> prose.Measured:
    return prose.measure_code([prose.ROOT / "tests"])


@pytest.fixture(scope="module")
def pages() -> list[prose.Text]:
    return prose.measure_pages(prose.ROOT / name for name in prose.PAGES)


@pytest.mark.parametrize("kind", prose.CODE_LIMITS)
def test_code_keeps_its_limits(code, kind):
    value, limit = code.value(kind), prose.CODE_LIMITS[kind]
    assert value <= limit, f"python -m tests.words.prose {kind} {' '.join(prose.CODE)}"


@pytest.mark.parametrize("kind", prose.TEST_LIMITS)
def test_tests_keep_their_limits(tests, kind):
    value, limit = tests.value(kind), prose.TEST_LIMITS[kind]
    assert value <= limit, f"python -m tests.words.prose {kind} tests"


def test_surprising_lines_have_comments(code):
    assert 100 * len(code.comments) / code.n_lines >= prose.LEAST_COMMENTS


@pytest.mark.parametrize("kind", sorted(prose.PAGE_LIMITS.keys() & prose.WORDS.keys()))
def test_pages_keep_their_rates(pages, kind):
    value, limit = prose.word_rate(kind, pages), prose.PAGE_LIMITS[kind]
    assert value <= limit, f"python -m tests.words.prose {kind} {' '.join(prose.PAGES)}"


def test_sentences_of_pages_are_short(pages):
    sentences = prose.split_sentences(pages)
    share = 100 * len(prose.long_sentences(sentences)) / len(sentences)
    assert share <= prose.PAGE_LIMITS["long_sentences"]


def test_each_kind_finds_its_example(tmp_path):
    (tmp_path / "example.py").write_text(
        '"""Of what nobody said: it stands."""\n'
        "class Twin:\n    pass\n"
        "class Twin:\n    pass\n"
        "def told(a, b, c, d, e, f, g):\n    pass\n"
    )
    measured = prose.measure_code([tmp_path])
    assert {kind for kind in prose.CODE_LIMITS if measured.list_places(kind)} == set(
        prose.CODE_LIMITS
    )
