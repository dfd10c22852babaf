"""Tests of the page and its files: complete, no external resources, nothing inline."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from select_service.api import fleet_page
from select_service.api.fleet_page import FILES
from select_service.api.static_files import CSS, HTML, JAVASCRIPT, SVG
from select_service.core.placement.policies.policy_registry import POLICIES

FOLDER = Path(fleet_page.__file__).parent / "page"
OWN = sorted(path.name for path in FOLDER.iterdir() if path.is_file())
MANIFEST = json.loads((FOLDER / "uplot" / "manifest.json").read_text())
TYPES = {"js": JAVASCRIPT, "css": CSS, "svg": SVG}


def test_the_page_has_a_strict_policy(api):
    page = api.get("/")
    assert page.headers["content-type"] == HTML
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert not re.search(r"unsafe|http|\*|data:", policy)


def test_nothing_in_the_page_is_inline(api):
    page = api.get("/").body
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", page)
    links = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    assert links - {"docs"} == {
        f"page/{name}" for name in ("icon.svg", "main.js", "style.css", "uPlot.min.css")
    }


@pytest.mark.parametrize("name", OWN)
def test_own_files_name_no_other_place_and_write_no_html(name):
    text = (FOLDER / name).read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_every_file_is_served_and_imports_are_among_them(api):
    served = {*OWN, *MANIFEST["sha256"]} - {"index.html"}
    for name in served:
        answer = api.call("GET", f"/page/{name}", accept_encoding="identity")
        assert answer.status == 200, name
        assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
        assert answer.headers["x-content-type-options"] == "nosniff"
        packed = api.get(f"/page/{name}")
        assert (packed.headers["content-encoding"], packed.body) == ("gzip", answer.body)
        if name.endswith(".js"):
            imported = re.findall(r'^import .* from "\./([^"]+)"', answer.body, re.MULTILINE)
            assert set(imported) <= served
    for name in ("index.html", "manifest.json", "..%2Flive.py", "x"):
        assert api.get(f"/page/{name}").status == 404
    assert FILES.file_parameter("main.js").read("main.js") == "main.js"


def test_every_term_of_every_policy_has_a_text():
    text = (FOLDER / "candidates.js").read_text()
    block = re.search(r"const TERMS = \{(.*?)\};", text, re.DOTALL)[1]
    known = set(re.findall(r"^  (\w+): \"", block, re.MULTILINE))
    terms = {name for policy in POLICIES.values() for name in policy.term_names}
    assert known == terms - {"cost"}


def test_the_chart_library_is_the_published_package():
    assert (MANIFEST["package"], MANIFEST["licence"]) == ("uplot", "MIT")
    assert "MIT License" in (FOLDER / "uplot" / "LICENSE").read_text()
    for name, digest in MANIFEST["sha256"].items():
        data = gzip.decompress((FOLDER / "uplot" / f"{name}.gz").read_bytes())
        assert hashlib.sha256(data).hexdigest() == digest
