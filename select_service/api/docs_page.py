"""The OpenAPI document as one HTML page for people: routes by tag, fields, examples with curl.

The page is complete in itself: nothing is fetched, which its own content security policy enforces.
Every text of the document is escaped; `code` in backquotes and `* ` lists are the only markup.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]

BASE_URL = "http://localhost:8092"
"""Stands in the curl lines until the page's script puts its own origin there."""

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--dim:#777;--soft:#8881}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}
h1{margin:.2em 0}h2{margin-top:2em;border-bottom:1px solid var(--line)}
code,pre{font:13px/1.45 ui-monospace,monospace}
code{background:var(--soft);padding:0 .25em;border-radius:3px}
pre{background:var(--soft);padding:.7em;border-radius:5px;overflow:auto;margin:.4em 0}
pre code{background:none;padding:0}
table{border-collapse:collapse;width:100%;margin:.4em 0}
td,th{border-bottom:1px solid var(--line);padding:.25em .5em;text-align:left;vertical-align:top}
details.op{border:1px solid var(--line);border-radius:6px;margin:.5em 0;padding:0 .8em}
details.op>summary{cursor:pointer;padding:.5em 0}
.method{display:inline-block;min-width:4.2em;font-weight:700}
.path{font-family:ui-monospace,monospace}
.dim{color:var(--dim)}h4{margin:1em 0 .2em}nav a{margin-right:1em}
input{font:inherit;padding:.3em .6em;width:100%;box-sizing:border-box;margin:1em 0 0}
"""

_SCRIPT = """
for (const pre of document.querySelectorAll('pre.curl'))
  pre.textContent = pre.textContent.replaceAll('BASE_URL', location.origin);
const find = document.getElementById('find');
find.addEventListener('input', () => {
  const word = find.value.toLowerCase();
  for (const op of document.querySelectorAll('details.op'))
    op.hidden = !op.textContent.toLowerCase().includes(word);
});
const open = () => {
  const at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (at && at.tagName === 'DETAILS') at.open = true;
};
addEventListener('hashchange', open);
open();
""".replace("BASE_URL", BASE_URL)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(document: Json) -> bytes:
    """The whole page, UTF-8."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        "<meta name=viewport content='width=device-width'>",
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        _prose(info["description"]),
        _navigation(document["tags"]),
        "<input id=find type=search placeholder='Find a route or a field' aria-label=Find>",
        *(_tag(tag, document) for tag in document["tags"]),
        "<h2 id=schemas>Schemas</h2>",
        *(_schema(name, s) for name, s in sorted(document["components"]["schemas"].items())),
        f"<script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts).encode()


def _navigation(tags: Iterable[Json]) -> str:
    links = [f'<a href="#{escape(tag["name"])}">{escape(tag["name"])}</a>' for tag in tags]
    links += ['<a href="#schemas">schemas</a>', '<a href="openapi.json">openapi.json</a>']
    return f"<nav>{' '.join(links)}</nav>"


# --- routes


def _tag(tag: Json, document: Json) -> str:
    name = tag["name"]
    operations = [
        _operation(method, path, operation, document)
        for path, by_method in document["paths"].items()
        for method, operation in by_method.items()
        if name in operation["tags"]
    ]
    head = f"<h2 id={escape(name)}>{escape(name)}</h2>{_prose(tag['description'])}"
    return head + "\n".join(operations)


def _operation(method: str, path: str, operation: Json, document: Json) -> str:
    head = (
        f"<summary><span class=method>{method.upper()}</span><span class=path>{escape(path)}</span>"
        f" <span class=dim>{escape(operation['summary'])}</span></summary>"
    )
    parts = [head, _prose(operation.get("description", ""))]
    if "parameters" in operation:
        parts += ["<h4>Parameters</h4>", _parameters(operation["parameters"])]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        parts += ["<h4>Body</h4>", f"<p>{_type(content['schema'])}</p>"]
        parts += [_fields(_resolved(content["schema"], document))]
    parts += ["<h4>Example</h4>", *_curls(method, path, operation, content)]
    parts += ["<h4>Answers</h4>", _answers(operation["responses"])]
    return f'<details class=op id="{escape(operation["operationId"])}">{"".join(parts)}</details>'


def _parameters(parameters: Iterable[Json]) -> str:
    rows = (
        (
            f"<code>{escape(p['name'])}</code>",
            f"{p['in']}, {_type(p['schema'])}",
            _inline(p.get("description", "")) + _default(p["schema"]),
        )
        for p in parameters
    )
    return _table(("name", "where, type", "meaning"), rows)


def _answers(responses: Json) -> str:
    rows = []
    for status, response in responses.items():
        content, *_ = response["content"].values()  # the others are binary forms of it
        shown = _prose(response["description"])
        if "example" in content and int(status) < 400:
            shown += f"<details><summary>example</summary>{_pre(content['example'])}</details>"
        rows.append((status, _type(content["schema"]), shown))
    return _table(("status", "body", "meaning"), rows)


def _curls(method: str, path: str, operation: Json, content: Json | None) -> Iterator[str]:
    """One curl line for every example body, or one without."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
    verb = "" if method == "get" else f" -X {method.upper()}"
    line = f"curl{verb} {BASE_URL}{path}"
    if content is None:
        yield f"<pre class=curl>{escape(line)}</pre>"
        return
    for example in content["examples"].values():
        body = json.dumps(example["value"]).replace("'", "'\\''")
        head = "-H 'content-type: application/json'"
        yield f"<pre class=curl>{escape(line)} \\\n  {head} \\\n  -d '{escape(body)}'</pre>"


# --- schemas


def _schema(name: str, schema: Json) -> str:
    head = f"<summary><span class=path>{escape(name)}</span></summary>"
    body = _prose(schema.get("description", "")) + _fields(schema)
    return f'<details class=op id="schema-{escape(name)}">{head}{body}</details>'


def _fields(schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = (
        (
            f"<code>{escape(name)}</code>" + (" *" if name in required else ""),
            _type(field),
            _inline(_described(field)) + _default(field),
        )
        for name, field in schema.get("properties", {}).items()
    )
    return _table(("field, * always there", "type", "meaning"), rows)


def _described(schema: Json) -> str:
    parts = [schema, *schema.get("anyOf", ())]
    return next((part["description"] for part in parts if "description" in part), "")


def _default(schema: Json) -> str:
    if schema.get("default") is None:
        return ""
    return f" <span class=dim>default <code>{escape(json.dumps(schema['default']))}</code></span>"


def _resolved(schema: Json, document: Json) -> Json:
    name = schema["$ref"].rsplit("/", 1)[-1]
    found: Json = document["components"]["schemas"][name]
    return found


def _type(schema: Json) -> str:
    """A schema in a few words, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items") or {"anyOf": schema.get("prefixItems", [])}
        return f"array of {_type(items)}"
    if kind == "object" and "additionalProperties" in schema:
        key = "number" if "pattern" in schema.get("propertyNames", {}) else "string"
        return f"object: {key} to {_type(schema['additionalProperties'])}"
    return escape(kind) + _limits(schema)


def _limits(schema: Json) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" {low} to {high}"
    if low is not None:
        return f" from {low}"
    longest = schema.get("maxLength")
    return f" of at most {longest} characters" if longest is not None else ""


# --- HTML


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>" if len(lines) > 1 else ""


def _pre(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def _inline(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _prose(text: str) -> str:
    """Paragraphs, and lists of lines that begin with `* `."""
    if not text.strip():
        return ""
    lead, *items = re.split(r"(?:^|\n)\* ", text)
    listed = "".join(f"<li>{_inline(item)}</li>" for item in items)
    paragraph = f"<p>{_inline(lead.strip())}</p>" if lead.strip() else ""
    return paragraph + (f"<ul>{listed}</ul>" if listed else "")
