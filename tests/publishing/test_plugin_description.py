"""Tests that the checked-in description of the planner's plugins matches the .proto file."""

from scripts import plugin_description


def test_the_description_is_that_of_the_proto_file() -> None:
    assert plugin_description.main(["--check"]) == 0
