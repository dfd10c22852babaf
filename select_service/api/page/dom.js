// Construction of DOM elements.  Every text becomes a text node: nothing from the service is ever
// parsed as HTML.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat());
  return made;
}

export const byId = (id) => document.getElementById(id);

// Write only changes: most of a large fleet is the same as a second ago.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

// Returns a table of texts or nodes; columns: {title, number, hint, of: row => text}.
export function table(columns, rows, rowProperties = () => ({})) {
  const cell = (column, row) =>
    el("td", column.number ? { class: "number" } : {}, column.of(row));
  const head = columns.map((column) =>
    el("th", { scope: "col", class: column.number ? "number" : "", title: column.hint }, column.title));
  const body = rows.map((row) =>
    el("tr", rowProperties(row), columns.map((column) => cell(column, row))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}
