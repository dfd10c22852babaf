"""Tests of a file's plugins, which are checked, loaded and named before any scaling."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from select_service.planner import __main__ as command
from select_service.planner.config import PlannerConfig
from select_service.planner.config_loader import PlannerConfigError, convert_config
from select_service.planner.plugins import plugin_loader
from select_service.planner.plugins.plugin_loader import PluginLoadError, describe_plugins

MODULE = """
class Fixed:
    def __init__(self, replicas=1):
        self.replicas = replicas
    def propose(self, context):
        target = {"component": "decode", "type": "SET", "replicas": self.replicas}
        return {"targets": [target]}
class Broken:
    def __init__(self):
        raise KeyError("PRICES")
class Leaves:
    def __init__(self):
        raise SystemExit(3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_plugins.py").write_text(MODULE)
    (tmp_path / "half_plugins.py").write_text("import nothing_like_this\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_plugins", "half_plugins"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "own_plugins"


def a_file(*plugins: dict[str, Any], names: tuple[str, ...] = ("chat",)) -> PlannerConfig:
    deployments = [{"name": name, "model_name": "m", "mode": "agg"} for name in names]
    return convert_config(
        {"selectors": ["http://s"], "deployments": deployments, "plugins": list(plugins)}
    )


def a_plugin(**given: Any) -> dict[str, Any]:
    return {"name": "fixed", "stage": "propose", "class": "own_plugins:Fixed", **given}


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        ({"class": None}, "plugin `fixed`: expected one of class, entry_point and url"),
        ({"url": "http://p"}, "expected one of class, entry_point and url"),
        ({"class": "own_plugins.Fixed"}, "class: expected package.module:Class, got"),
        ({"class": "__import__('os'):x"}, "class: expected package.module:Class, got"),
        ({"name": "load"}, "name: expected another name than the builtin loops load, throughput"),
        ({"deployments": ["chaty"]}, "`chaty` is not in the file; did you mean `chat`?"),
        ({"heartbeat_s": 5}, "heartbeat_s: only plugins with a url have one"),
        ({"token_file": "/k"}, "token_file: only plugins with a url have one"),
        ({"class": None, "url": "ftp://p"}, "it does not begin with http://, https://, grpc://"),
        ({"class": None, "url": "grpc://p"}, "expected grpc://host:port, without a path"),
        ({"class": None, "url": "grpcs://p:1/x"}, "expected grpc://host:port, without a path"),
        ({"class": None, "url": "grpc://:1"}, "plugin `fixed`: url `grpc://:1`:"),
        ({"class": None, "url": "http://p", "options": {"a": 1}}, "options: only classes have"),
        ({"stage": "observe"}, "plugins[0].stage: expected one of predict, propose, constrain"),
        ({"timeout_s": 60}, "plugins[0].timeout_s: expected a number <= 5"),
        ({"prority": 1}, "unknown setting `prority` at `$.plugins[0]`; did you mean `priority`?"),
    ],
)
def test_faults_of_a_file(plugin: dict[str, Any], fault: str) -> None:
    with pytest.raises(PlannerConfigError) as raised:
        a_file(a_plugin(**plugin))
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_are_unique_and_the_former_setting_is_named() -> None:
    with pytest.raises(PlannerConfigError, match="`fixed` is given twice"):
        a_file(a_plugin(), a_plugin())
    document = {"deployments": [{"name": "a", "model_name": "m"}], "proposers": []}
    with pytest.raises(PlannerConfigError, match="`proposers`; did you mean `plugins`"):
        convert_config(document)


def test_grpc_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    url = a_plugin(**{"class": None}, url="grpc://p:1")
    assert a_file(url).plugins
    monkeypatch.setattr(
        "select_service.planner.plugins.plugin_faults.find_spec",
        lambda name: None if name == "grpc" else name,
    )
    with pytest.raises(PlannerConfigError, match=r"pip install 'select-service\[grpc\]'"):
        a_file(url)


def test_classes_are_loaded_with_their_options(module: str) -> None:
    config = a_file(a_plugin(options={"replicas": 4}), names=("chat", "code"))
    assert list(describe_plugins(config)) == ["fixed (propose, own_plugins:Fixed)"]
    objects = plugin_loader.make_objects(config.plugins[0], ["chat", "code"])
    assert {name: each.replicas for name, each in objects.items()} == {  # type: ignore[attr-defined]
        "chat": 4,
        "code": 4,
    }
    assert objects["chat"] is not objects["code"]


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        ({"class": "own_plugins:Missing"}, "module own_plugins has no class `Missing`"),
        ({"class": "no_such_plugins:A"}, "ModuleNotFoundError: No module named 'no_such_plugins'"),
        ({"class": "half_plugins:A"}, "No module named 'nothing_like_this'"),
        ({"class": "own_plugins:Broken"}, "cannot be made: KeyError: 'PRICES'"),
        ({"class": "own_plugins:Leaves"}, "cannot be made: SystemExit: 3"),
        ({"options": {"price": 1}}, "unexpected keyword argument 'price'"),
        ({"stage": "predict"}, "Fixed has no method `predict`"),
        ({"class": None, "entry_point": "none"}, "no entry point `none` in the group select_serv"),
    ],
)
def test_plugins_that_cannot_be_loaded(module: str, plugin: dict[str, Any], fault: str) -> None:
    with pytest.raises(PluginLoadError) as raised:
        list(describe_plugins(a_file(a_plugin(**plugin))))
    assert fault in str(raised.value)
    assert "`fixed`" in str(raised.value)


def test_entry_points(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("fixed", "own_plugins:Fixed", plugin_loader.ENTRY_POINTS)

    def installed(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "select_service.planner_plugins"
        return [entry] if name in (None, "fixed") else []

    monkeypatch.setattr(plugin_loader, "entry_points", installed)
    config = a_file(a_plugin(**{"class": None}, entry_point="fixed"))
    assert list(describe_plugins(config)) == ["fixed (propose, entry point fixed)"]
    other = a_file(a_plugin(**{"class": None}, entry_point="fixd"))
    with pytest.raises(PluginLoadError, match="installed: fixed"):
        list(describe_plugins(other))


def test_check_names_the_plugins(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "planner.yaml"
    text = (
        "selectors: [http://s]\ndeployments: [{name: a, model_name: m}]\nplugins:\n"
        "  - {name: fixed, stage: propose, class: 'own_plugins:Fixed'}\n"
        "  - {name: price, stage: constrain, url: 'grpc://prices:50051'}\n"
    )
    path.write_text(text)
    assert command.main(["check", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{path}: good, 1 deployment(s): a\n"
        "plugins: fixed (propose, own_plugins:Fixed), price (constrain, grpc://prices:50051)\n"
    )
    path.write_text(text.replace("Fixed'", "Broken'"))
    assert command.main(["check", str(path)]) == 2
    assert "plugin `fixed` cannot be made: KeyError: 'PRICES'" in capsys.readouterr().err
