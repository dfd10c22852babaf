// Panel with all facts of the selected rank.

import { get } from "./api.js";
import { el, setText } from "./dom.js";
import { age, count, rate, share } from "./numbers.js";
import { stateText } from "./fleet.js";

const LIVE = {
  State: stateText,
  "Live requests": (row) => count(row.requests),
  "Prompt tokens to compute": (row) => count(row.prefillTokens),
  "Active blocks": (row) => count(row.activeBlocks),
  "KV cache used": (row) => share(row.kvUsage),
  "KV events": (row) => (row.eventState ? row.eventState.replaceAll("_", " ") : "no listener"),
  "Events per second": (row) => rate(row.eventsPerS),
  "Last event": (row) => (row.eventState ? age(row.eventAge_s) : "–"),
};

function groupsText(groups) {
  return groups?.map(({ kind, blocks, block_size: size }) =>
    `${kind.replaceAll("_", " ")}: ${count(blocks)} blocks of ${size}`).join("; ");
}

function connectionText(events) {
  const { unconnected, connect_error: error } = events ?? {};
  return unconnected ? `${unconnected.reason}, for ${Math.round(unconnected.seconds)} s` : error;
}

export class RankPanel {
  #root;
  #values = new Map();
  #record = el("dl", { class: "record" });

  constructor(root) {
    this.#root = root;
  }

  // row: undefined once the rank has left
  update(row) {
    for (const [name, node] of this.#values) setText(node, row ? LIVE[name](row) : "–");
  }

  async open(row) {
    this.#root.hidden = !row;
    if (!row) return;
    this.#values.clear();
    const facts = Object.keys(LIVE).map((name) => {
      const value = el("dd");
      this.#values.set(name, value);
      return el("div", {}, el("dt", {}, name), value);
    });
    this.#record.replaceChildren();
    this.#root.replaceChildren(
      el("h3", {}, `Worker ${row.workerId}, rank ${row.dpRank}`), el("dl", {}, facts), this.#record);
    this.update(row);
    try {
      this.#showRecord(await get(`workers/${row.workerId}`), row.dpRank);
    } catch (error) {
      this.#add("Record", error.message);
    }
  }

  #showRecord(record, dpRank) {
    const events = record.kv_events?.[dpRank];
    const health = record.health?.ranks?.[dpRank];
    const predictions = record.predictions?.[dpRank];
    this.#add("Endpoint", record.endpoint);
    this.#add("Role", record.role);
    this.#add("Host of its link", record.kv_transfer?.host);
    this.#add("Events from", record.kv_events_endpoints?.[dpRank] ?? record.kv_events_endpoint);
    this.#add("Missing", record.not_schedulable_reasons?.join("; "));
    this.#add("Hints", record.hints?.join("; "));
    this.#add("Taints", record.taints.join(", "));
    this.#add("Connection", connectionText(events));
    this.#add("Last error", events?.last_error);
    this.#add("Cache groups", groupsText(events?.groups));
    this.#add("Overlaps are at most", events?.why);
    this.#add("Health checks rejected", health?.misconfigured);
    this.#add("Health", health?.cause ?? health?.last_error);
    this.#add("Prompt blocks announced", predictions?.trust == null ? null : share(predictions.trust));
    this.#add("Probable fault", predictions?.suspect);
  }

  #add(name, text) {
    if (text) this.#record.append(el("div", {}, el("dt", {}, name), el("dd", {}, text)));
  }
}
