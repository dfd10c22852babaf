"""Dotted names in prose, resolved against the sources without importing them.

`python -m tests.words.dotted_names` lists the names that lead nowhere.
"""

import ast
import builtins
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.words.prose import CODE, ROOT

PROSE_IN = (*CODE, "tests", "docs/examples")
"""Folders of Python files that are read; members are those of `CODE` and of tests."""

DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
BARE = re.compile(
    r"(?<![\w./`\"'-])(?:select_service|indexer|core|adapters)(?:\.\w+){2,}(?![\w*.]*[/*])"
)
"""Names of modules without backticks."""
FILE = re.compile(r"(?<![\w/.-])(?:select_service|indexer|scripts|tests|docs)/[\w./-]+\.\w+")
FILE_SUFFIXES = r"\.(py|md|ts|toml|pem|crt|key|ya?ml|json|test)$"
OWN_PACKAGES = ("select_service", "indexer", "scripts", "tests")
FOREIGN = frozenset(
    {"coordination", "dynamo", "ray", "runtime_context", "server_state", "spec", "vllm"}
)
"""First parts of names of Kubernetes and of programs that need not be installed."""


class Sources:
    """Modules, members and string constants of the Python files of this project."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        """Names at the top level of each module or package."""
        self.members: dict[str, set[str]] = defaultdict(set)
        """Attributes and methods by class name; classes with the same name are merged."""
        self.attributes: set[str] = set()
        """All names that are read or set as an attribute, or defined."""
        self.loggers: set[str] = set()
        """Names of loggers and other strings that look like a module of the product."""
        for path in python_files():
            self._add_file(path)
        self.suffixes = defaultdict(set)
        for module in self.modules:
            parts = module.split(".")
            for i in range(len(parts)):
                self.suffixes[".".join(parts[i:])].add(module)

    def _add_file(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.modules[module] = set(_bound_names(tree.body))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
            elif isinstance(node, ast.arg):
                self.attributes.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if module.startswith(CODE) and node.value.startswith("select_service."):
                    self.loggers.add(node.value)
            elif isinstance(node, ast.ClassDef):
                own = self.members[node.name]
                own.update(_bound_names(node.body))
                own.update(
                    each.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute) and _is_self(each.value)
                )
                for base in node.bases:
                    own.add(f"<{ast.unparse(base).partition('[')[0].rpartition('.')[2]}")
                self.attributes |= own

    def has_member(self, class_name: str, member: str) -> bool:
        """Return whether a class or a base class has a member."""
        own = self.members[class_name]
        bases = [name[1:] for name in own if name.startswith("<")]
        return member in own or any(
            self.has_member(base, member) for base in bases if base in self.members
        )

    def has_object(self, name: str) -> bool:
        """Return whether a name is a module, a module's member, or a member of such a class."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            rest = parts[end:]
            for module in self.suffixes.get(".".join(parts[:end]), ()):
                if not rest or (rest[0] in self.modules[module] and self._has_rest(rest)):
                    return True
        return False

    def _has_rest(self, rest: list[str]) -> bool:
        return len(rest) == 1 or rest[0] not in self.members or self.has_member(*rest[:2])

    def resolves(self, name: str, names_in_file: set[str]) -> bool:
        """Return whether a name of a docstring or a comment leads somewhere.

        names_in_file: variables, parameters and attributes of the file; `x.`y of such an x needs
            an attribute y anywhere in the sources
        """
        first, second = name.split(".")[:2]
        if first in self.members:
            return self.has_member(first, second)
        if self.has_object(name) or name in self.loggers:
            return True
        if first in FOREIGN or (first not in OWN_PACKAGES and _is_importable(first)):
            return True
        return first in names_in_file and second in self.attributes


def unresolved_names(sources: Sources) -> Iterator[str]:
    """Yield `file: name` of every dotted name that leads nowhere."""
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        local |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        local |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for name in (*DOTTED.findall(text), *BARE.findall(text)):
            if not re.search(FILE_SUFFIXES, name) and not sources.resolves(name, local):
                yield f"{path.relative_to(ROOT)}: {name}"
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name in DOTTED.findall(path.read_text(encoding="utf-8")):
            ours = name.split(".")[0] in {*OWN_PACKAGES, *sources.members}
            if ours and not re.search(FILE_SUFFIXES, name) and not sources.resolves(name, set()):
                yield f"{path.relative_to(ROOT)}: {name}"


def missing_files() -> Iterator[str]:
    """Yield `file: path` of every path in a Python file of the product that does not exist."""
    for path in python_files(CODE):
        for name in FILE.findall(path.read_text(encoding="utf-8")):
            if not (ROOT / name).exists():
                yield f"{path.relative_to(ROOT)}: {name}"


def python_files(folders: tuple[str, ...] = PROSE_IN) -> Iterator[Path]:
    """Yield all Python files of some folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
        else:
            # Assignments, also below `if` and `try`.
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    yield each.id
                elif isinstance(each, ast.FunctionDef | ast.ClassDef):
                    yield each.name
                elif isinstance(each, ast.alias):
                    yield (each.asname or each.name).partition(".")[0]


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_importable(package: str) -> bool:
    return hasattr(builtins, package) or importlib.util.find_spec(package) is not None


if __name__ == "__main__":
    print("\n".join([*unresolved_names(Sources()), *missing_files()]))
    sys.exit()
