// Map of the fleet: a cell for every rank, with its load and KV usage as bars.

import { el, setData, setText } from "./dom.js";
import { count, rate, share } from "./numbers.js";
import { nameOf } from "./rates.js";

const WIDE_MAX = 32; // most ranks for cells with numbers
const NAMED_MAX = 256; // most ranks for cells with names
const DOUBTFUL = new Set(["degraded", "unverified", "catching_up", "unconnected"]);
const LOST = new Set(["unhealthy", "dead"]);
const GOES_ON = new Set(["schedulable", "healthy", "suspicious"]);

// Returns the rows of one partition: the values shown for each rank.
function rowsOf({ ranks, checks_refused: refused }, eventsPerS) {
  const unchecked = new Set(refused);
  const bounded = new Set(ranks.bounded_rows);
  const assumed = new Set(ranks.assumed_rows);
  const mostTokens = Math.max(1, ...ranks.prefill_tokens);
  const mostBlocks = Math.max(1, ...ranks.active_blocks);
  return ranks.worker_ids.map((workerId, i) => {
    const name = nameOf(workerId, ranks.dp_ranks[i]);
    const row = {
      name, workerId, dpRank: ranks.dp_ranks[i],
      model: ranks.model_name, tenant: ranks.tenant_id,
      state: ranks.states[i], busy: ranks.busy[i], unchecked: unchecked.has(workerId), bounded: bounded.has(i),
      assumed: assumed.has(i),
      prefillTokens: ranks.prefill_tokens[i], activeBlocks: ranks.active_blocks[i],
      requests: ranks.active_requests[i], kvUsage: ranks.kv_usages[i],
      eventState: ranks.event_states[i], eventAge_s: ranks.event_ages_s[i],
      eventsPerS: eventsPerS(name),
      load: ranks.prefill_tokens[i] / mostTokens,
      kv: ranks.kv_usages[i] ?? ranks.active_blocks[i] / mostBlocks,
    };
    return { ...row, mood: moodOf(row) };
  });
}

function moodOf({ state, busy, eventState, unchecked }) {
  if (!GOES_ON.has(state)) return "off";
  const doubtful = busy || unchecked || state === "suspicious" || DOUBTFUL.has(eventState);
  return doubtful ? "warn" : "ok";
}

export function stateText({ state, busy, eventState, unchecked, bounded, assumed }) {
  const words = [state];
  if (unchecked) words.push("rejects health checks");
  if (busy) words.push("busy");
  if (DOUBTFUL.has(eventState)) words.push(`events ${eventState.replace("_", " ")}`);
  if (bounded) words.push("overlaps not exact");
  if (assumed) words.push("overlaps assumed");
  return words.join(", ");
}

export class Fleet {
  #root;
  #onSelect;
  #groups = new Map(); // by model and tenant
  #cells = new Map(); // by name of the rank
  selected = null;

  constructor(root, onSelect) {
    this.#root = root;
    this.#onSelect = onSelect;
    root.addEventListener("keydown", (event) => this.#move(event));
  }

  // Displays a frame; returns all rows by name of the rank.
  show(frame, eventsPerS) {
    const found = new Map();
    const groups = new Map();
    for (const partition of frame.partitions) {
      const rows = rowsOf(partition, eventsPerS);
      const key = JSON.stringify([partition.ranks.model_name, partition.ranks.tenant_id]);
      groups.set(key, this.#groups.get(key) ?? newGroup());
      this.#showGroup(groups.get(key), partition, rows);
      for (const row of rows) found.set(row.name, row);
    }
    this.#replace(groups);
    for (const name of this.#cells.keys()) if (!found.has(name)) this.#cells.delete(name);
    return found;
  }

  #replace(groups) {
    const same = groups.size === this.#groups.size && [...groups.keys()].every((key) => this.#groups.has(key));
    this.#groups = groups;
    if (same && this.#root.querySelector(".group")) return;
    const nodes = [...groups.values()].map((group) => group.node);
    this.#root.replaceChildren(...(nodes.length ? nodes : [el("p", { class: "empty" }, "No worker is registered yet.")]));
  }

  #showGroup(group, { ranks, policy, block_size: blockSize }, rows) {
    const facts = [`${rows.length} ranks`];
    if (policy) facts.push(`policy ${policy}`, `blocks of ${blockSize}`);
    const lost = rows.filter(({ state }) => LOST.has(state)).length;
    if (lost) facts.push(`${count(lost)} lost`);
    if (ranks.pending_count) facts.push(`${count(ranks.pending_count)} waiting`);
    setText(group.title, `${ranks.model_name} · ${ranks.tenant_id}`);
    setText(group.facts, facts.join(", "));
    setData(group.map, "size", sizeOf(rows.length));
    const cells = rows.map((row) => this.#cell(row));
    const there = group.map.children;
    if (there.length !== cells.length || cells.some((cell, i) => there[i] !== cell)) {
      group.map.replaceChildren(...cells);
    }
    if (cells.length && !group.map.querySelector('[tabindex="0"]')) cells[0].tabIndex = 0;
  }

  #cell(row) {
    let cell = this.#cells.get(row.name);
    if (!cell) {
      cell = newCell(row, () => this.select(row.name));
      this.#cells.set(row.name, cell);
    }
    const { node, label, numbers } = cell;
    setData(node, "mood", row.mood);
    setData(node, "events", row.eventState ?? "");
    setData(node, "bound", row.bounded ? "at_most" : row.assumed ? "assumed" : "");
    setBar(node, "--load-share", row.load);
    setBar(node, "--kv-share", row.kv);
    setText(numbers, numbersOf(row));
    const text = `rank ${row.name}, ${stateText(row)}`;
    if (node.getAttribute("aria-label") !== text) node.setAttribute("aria-label", text);
    if (node.title !== text) node.title = text;
    setText(label, row.name);
    return node;
  }

  select(name) {
    for (const old of [this.selected, name]) {
      const cell = this.#cells.get(old);
      if (cell) cell.node.setAttribute("aria-pressed", String(old === name && name !== this.selected));
    }
    this.selected = name === this.selected ? null : name;
    this.#onSelect(this.selected);
  }

  // Arrow keys move between ranks; each map is a single tab stop (roving tabindex).
  #move(event) {
    const cell = event.target.closest(".rank");
    if (!cell) return;
    const cells = [...cell.parentNode.children];
    const columns = getComputedStyle(cell.parentNode).gridTemplateColumns.split(" ").length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const at = cells.indexOf(cell);
    const ends = { Home: 0, End: cells.length - 1 };
    const next = cells[ends[event.key] ?? at + (steps[event.key] ?? NaN)];
    if (!next) return;
    event.preventDefault();
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

function sizeOf(n) {
  if (n <= WIDE_MAX) return "wide";
  return n <= NAMED_MAX ? "named" : "dense";
}

function numbersOf({ requests, kvUsage, eventState, eventsPerS }) {
  const texts = [`${count(requests)} live`, `KV ${share(kvUsage)}`];
  if (eventState === "unconnected") texts.push("no events: unconnected");
  else if (eventState) texts.push(`${rate(eventsPerS)} events/s`);
  return texts.join(" · ");
}

function newGroup() {
  const title = el("h3");
  const facts = el("p", { class: "facts" });
  const map = el("div", { class: "map", role: "group" });
  return { title, facts, map, node: el("div", { class: "group" }, title, facts, map) };
}

function newCell(row, onClick) {
  const label = el("span", { class: "name" }, row.name);
  const numbers = el("span", { class: "numbers" });
  const bars = el("span", { class: "bars" }, el("i", { class: "load" }), el("i", { class: "kv" }));
  const node = el("button",
    { class: "rank", type: "button", tabindex: "-1", "aria-pressed": "false", onclick: onClick },
    label, bars, numbers);
  return { node, label, numbers };
}

function setBar(node, name, value) {
  const text = `${Math.round(100 * Math.min(1, value))}%`;
  if (node.style.getPropertyValue(name) !== text) node.style.setProperty(name, text);
}
