"""Tests that dotted names and paths in docstrings, comments and pages exist."""

import pytest

from tests.words.dotted_names import Sources, missing_files, unresolved_names


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources()


def test_dotted_names_resolve(sources):
    assert list(unresolved_names(sources)) == []


def test_paths_in_the_product_exist():
    assert list(missing_files()) == []


@pytest.mark.parametrize(
    ("name", "resolves"),
    [
        ("Sources.has_member", True),
        ("Sources.gone", False),
        ("words.dotted_names", True),
        ("dotted_names.missing_files", True),
        ("dotted_names.Sources.gone", False),
        ("words.gone", False),
        ("tests.gone.name", False),
        ("pathlib.Path", True),
        ("gone_package.name", False),
        ("variable.modules", True),
        ("variable.attribute_of_nothing_here", False),
    ],
)
def test_a_name_resolves_or_not(sources, name, resolves):
    assert sources.resolves(name, {"variable"}) is resolves
