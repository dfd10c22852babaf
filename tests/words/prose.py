"""Measures of names, docstrings, comments and pages, with the limits that this project keeps.

`python -m tests.words.prose KIND PATH...` lists the places that a measure counts; KIND is a key of
`CODE_LIMITS` or `PAGE_LIMITS`.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE = ("select_service", "indexer", "scripts")
PAGES = ("README.md", "docs")

WORDS = {
    "what": re.compile(r"\bwhat\b", re.I),
    "who": re.compile(r"\b(who|whoever|nobody|somebody|everybody|anybody|whose|whom)\b", re.I),
    "say": re.compile(r"\b(say|says|said|tell|tells|told|hear|hears|heard)\b", re.I),
    "stand": re.compile(r"\b(stand|stands|stood|lie|lies)\b", re.I),
    "pronoun": re.compile(r"\b(it|its|they|them|their|those|one|ones)\b", re.I),
}
"""Words with a limited rate, per 10,000 words of docstrings and comments or of pages."""

NO_SUBJECT = re.compile(
    r"(Of|That|What|Who|Whose|Which|None|As|By|So|Is|Are|Do|Does|Those|With|Without|To|From|For|In"
    r"|At|On)\b"
)
"""First words of docstrings that do not name their subject."""

PARTICIPLES = frozenset(
    {
        "told",
        "held",
        "asked",
        "known",
        "given",
        "wanted",
        "seen",
        "said",
        "heard",
        "made",
        "taken",
        "found",
        "left",
        "gone",
        "come",
        "came",
        "stood",
        "kept",
        "thought",
        "meant",
        "looked",
        "judged",
        "believed",
        "opened",
        "lived",
        "weighed",
        "drawn",
        "shown",
        "counted",
        "named",
    }
)
"""Names that are no name for a function or a class."""

CODE_LIMITS = {
    "what": 10,
    "who": 3,
    "say": 5,
    "stand": 2,
    "pronoun": 195,
    "fragments": 0.5,
    "one_word": 20,
    "participles": 1,
    "repeated_classes": 0,
    "signatures": 3,
}
"""Greatest values over the product and scripts: rates per 10,000 words, percentages, and counts."""

TEST_LIMITS = {
    "what": 5,
    "who": 3,
    "say": 5,
    "stand": 2,
    "pronoun": 170,
    "fragments": 0.5,
    "one_word": 40,
    "participles": 0,
}
"""Greatest values over the tests, as `CODE_LIMITS`."""

LEAST_COMMENTS = 2
"""Least number of comments per 100 lines."""

PAGE_LIMITS = {"what": 15, "who": 3, "say": 5, "pronoun": 160, "long_sentences": 5}
"""Greatest values over README and docs: rates per 10,000 words, and a percentage of sentences."""

LONGEST_SENTENCE = 30
"""Number of words from which on a sentence counts as long."""

MOST_PARAMETERS = 6
"""Number of parameters that a signature may have, besides `self` and `cls`."""

VENDORED = frozenset({"viewer", "uplot", "__pycache__"})


class Text(NamedTuple):
    """Piece of prose with its place."""

    place: str
    text: str


@dataclass
class Measured:
    """Prose and names of a set of Python files."""

    docstrings: list[Text] = field(default_factory=list)
    comments: list[Text] = field(default_factory=list)
    functions: list[Text] = field(default_factory=list)
    classes: list[Text] = field(default_factory=list)
    signatures: list[Text] = field(default_factory=list)
    n_lines: int = 0

    @property
    def prose(self) -> list[Text]:
        """All docstrings and comments."""
        return self.docstrings + self.comments

    def list_places(self, kind: str) -> list[Text]:
        """Return the places that count for a key of `CODE_LIMITS`."""
        if kind in WORDS:
            return [text for text in self.prose if WORDS[kind].search(text.text)]
        if kind == "fragments":
            return [text for text in self.docstrings if NO_SUBJECT.match(text.text.strip())]
        if kind == "one_word":
            return [name for name in self.functions if len(_parts(name.text)) == 1]
        if kind == "participles":
            names = self.functions + self.classes
            return [name for name in names if name.text.strip("_").lower() in PARTICIPLES]
        if kind == "repeated_classes":
            times = Counter(name.text for name in self.classes)
            return [name for name in self.classes if times[name.text] > 1]
        return self.signatures

    def value(self, kind: str) -> float:
        """Return the measure that `CODE_LIMITS` limits."""
        if kind in WORDS:
            return word_rate(kind, self.prose)
        found = len(self.list_places(kind))
        if kind == "fragments":
            return 100 * found / max(1, len(self.docstrings))
        if kind == "one_word":
            return 100 * found / max(1, len(self.functions))
        return found


def word_rate(kind: str, texts: Iterable[Text]) -> float:
    """Return how often words of a kind occur per 10,000 words."""
    joined = " ".join(text.text for text in texts)
    return 10_000 * len(WORDS[kind].findall(joined)) / max(1, len(joined.split()))


def measure_code(paths: Iterable[Path]) -> Measured:
    """Measure all Python files of the paths."""
    measured = Measured()
    for path in _files(paths, ".py"):
        source = path.read_text(encoding="utf-8")
        measured.n_lines += source.count("\n")
        for node in ast.walk(ast.parse(source)):
            _add_node(measured, path, node)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.string.lstrip("# ")
            if token.type == tokenize.COMMENT and not re.match(r"(mypy|type|noqa|!|ruff)", text):
                measured.comments.append(Text(_place(path, token.start[0]), text))
    return measured


def measure_pages(paths: Iterable[Path]) -> list[Text]:
    """Return the prose of all Markdown pages: no tables, code or targets of links."""
    texts = []
    for path in _files(paths, ".md"):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        lines = [line for line in text.split("\n") if not line.startswith(("|", "    "))]
        text = re.sub(r"`[^`]*`", "X", "\n".join(lines))
        texts.append(Text(_place(path, 1), re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)))
    return texts


def split_sentences(pages: Iterable[Text]) -> list[Text]:
    """Return every sentence of at least three words."""
    return [
        Text(page.place, sentence)
        for page in pages
        for sentence in re.split(r"(?<=[.!?])\s+", page.text.replace("\n", " "))
        if len(sentence.split()) > 2
    ]


def long_sentences(sentences: Iterable[Text]) -> list[Text]:
    """Return the sentences of more than `LONGEST_SENTENCE` words."""
    return [text for text in sentences if len(text.text.split()) > LONGEST_SENTENCE]


def _add_node(measured: Measured, path: Path, node: ast.AST) -> None:
    place = _place(path, getattr(node, "lineno", 1))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        if doc := ast.get_docstring(node):
            measured.docstrings.append(Text(place, doc))
        for text in node.body[1:]:  # docstrings of attributes
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                measured.docstrings.append(Text(_place(path, text.lineno), str(text.value.value)))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        counted = [p for p in parameters if p.arg not in ("self", "cls")]
        if len(counted) > MOST_PARAMETERS:
            measured.signatures.append(Text(place, f"{node.name}: {len(counted)} parameters"))
        if not node.name.startswith("__"):
            measured.functions.append(Text(place, node.name))
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        measured.classes.append(Text(place, node.name))


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name.strip("_")) if part]


def _place(path: Path, line: int) -> str:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line}"


def _files(paths: Iterable[Path], ending: str) -> Iterator[Path]:
    for path in paths:
        found = [path] if path.is_file() else sorted(path.rglob(f"*{ending}"))
        yield from (file for file in found if not VENDORED & set(file.parts))


def main(arguments: list[str]) -> int:
    """List the places that count for a kind."""
    kind, paths = arguments[0], [Path(path).resolve() for path in arguments[1:]]
    pages = measure_pages(paths)
    found = [] if kind == "long_sentences" else measure_code(paths).list_places(kind)
    if kind in WORDS:
        found += [page for page in pages if WORDS[kind].search(page.text)]
    if kind == "long_sentences":
        found += long_sentences(split_sentences(pages))
    for text in found:
        print(f"{text.place}: {' '.join(text.text.split())[:140]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
