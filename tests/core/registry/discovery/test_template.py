"""Tests of record templates, and of errors in templates."""

from select_service.core.registry.discovery.record_template import (
    fill_template,
    find_template_error,
    host_in_url,
)


def test_names_are_filled_in_at_any_depth():
    template = {"endpoint": "http://{host}:{port}", "taints": ["a-{port}"], "block_size": 16}
    template["topology_domains"] = {"host": "{host}"}
    assert fill_template(template, {"host": host_in_url("fd00::1"), "port": "80"}) == {
        "endpoint": "http://[fd00::1]:80",
        "taints": ["a-80"],
        "block_size": 16,
        "topology_domains": {"host": "[fd00::1]"},
    }


def test_an_unknown_name_is_named():
    known = frozenset({"host"})
    assert find_template_error({"endpoint": "{host}", "taints": ["{x}"]}, known) == (
        "unknown name `{x}`: use one of host"
    )
    assert find_template_error({"endpoint": "{host}", "block_size": 3}, known) is None
