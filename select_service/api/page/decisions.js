// List of recent decisions, newest first, each with a button that explains the decision.

import { el } from "./dom.js";
import { age, cost, count } from "./numbers.js";
import { nameOf } from "./rates.js";

const TITLES = ["when", "rank", "", "tokens", "cost", "next best", "choice", "request", "model"];
const NUMBERS = new Set(["tokens", "cost", "next best"]);

const pairText = ({ pair, ...row }) => (pair.path === "local" ? `${rankText(row)} for both`
  : `${nameOf(pair.prefill_worker_id, pair.prefill_dp_rank)} → ${rankText(row)}`);
const placeText = (row) => (row.pair ? pairText(row) : rankText(row));
const keyOf = (row) => (row.pair ? `pair ${row.pair.number}` : row.decision);

export const rankText = (row) => (row.worker_id === null ? "gone" : nameOf(row.worker_id, row.dp_rank));

export class Decisions {
  #root;
  #onWhy;
  #rows = new Map(); // by kind and number of the decision; reused, so that the focus survives updates
  #body = el("tbody");
  #table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Recent decisions" },
    el("table", {}, el("thead", {}, el("tr", {}, TITLES.map((title) =>
      el("th", { scope: "col", class: NUMBERS.has(title) ? "number" : "" }, title)))), this.#body));

  // onWhy(decision): called with the row of the decision to explain
  constructor(root, onWhy) {
    this.#root = root;
    this.#onWhy = onWhy;
  }

  show(decisions) {
    if (!decisions.length) {
      this.#root.replaceChildren(el("p", { class: "empty" }, "No decisions yet, or recording is off (--decisions)."));
      return;
    }
    if (this.#table.parentNode !== this.#root) this.#root.replaceChildren(this.#table);
    else if (this.#table.matches(":hover, :focus-within")) return; // a row that moves away cannot be clicked
    const rows = new Map();
    for (const decision of decisions) {
      const row = this.#rows.get(keyOf(decision)) ?? this.#row(decision);
      row.when.textContent = age(decision.seconds_ago);
      rows.set(keyOf(decision), row);
    }
    this.#rows = rows;
    this.#arrange([...rows.values()].map((row) => row.node));
  }

  // Insert only new rows: a row that is moved in the DOM loses the focus.
  #arrange(nodes) {
    const wanted = new Set(nodes);
    for (const node of [...this.#body.children]) if (!wanted.has(node)) node.remove();
    nodes.forEach((node, i) => {
      if (this.#body.children[i] !== node) this.#body.insertBefore(node, this.#body.children[i] ?? null);
    });
  }

  #row(decision) {
    const when = el("td");
    const id = decision.reservation_id ?? decision.selection_id ?? "";
    const number = (text) => el("td", { class: "number" }, text);
    const why = el("button", { type: "button", "aria-label": `Why rank ${placeText(decision)}?`,
      onclick: () => this.#onWhy(decision) }, "why?");
    const node = el("tr", {}, when, el("td", {}, placeText(decision)), el("td", {}, why),
      number(count(decision.isl_tokens)), number(cost(decision.cost)), number(cost(decision.runner_up_cost)),
      el("td", {}, decision.choice), el("td", { class: "id", title: id }, id), el("td", {}, decision.model_name));
    return { node, when };
  }
}
