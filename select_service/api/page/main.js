// Entry point: connects the parts of the page to the event stream.

import { get, keepKey } from "./api.js";
import { Ask } from "./ask.js";
import { candidatesOf } from "./candidates.js";
import { Charts } from "./charts.js";
import { Decisions } from "./decisions.js";
import { byId, el, setData, setText } from "./dom.js";
import { Fleet } from "./fleet.js";
import { pointsOf } from "./history.js";
import { count, rate, share } from "./numbers.js";
import { RankPanel } from "./rank.js";
import { Rates } from "./rates.js";
import { watch } from "./stream.js";
import { showPairs, showQueue, showReplicas, showSharedCaches } from "./tables.js";

const rates = new Rates();
const panel = new RankPanel(byId("rank"));
const fleet = new Fleet(byId("fleet"), (name) => panel.open(rows.get(name)));
const charts = new Charts(byId("charts"));
const decisions = new Decisions(byId("decisions"), why);
const ask = new Ask(byId("ask"), byId("ask-error"), byId("answer"));
const tiles = new Map();
let rows = new Map();

function showHistory(history) {
  charts.begin(pointsOf(history, Date.now() / 1000));
}

function show(frame) {
  const now_s = performance.now() / 1000;
  const lately = rates.add(frame, now_s);
  rows = fleet.show(frame, lately.eventsPerS);
  const now = { ...lately, ...sums(frame) };
  setText(byId("version"), frame.version);
  summarise(now);
  charts.add(Date.now() / 1000, now);
  if (fleet.selected) panel.update(rows.get(fleet.selected));
  showQueue(byId("queue"), frame);
  showPairs(byId("pairs"), frame);
  showReplicas(byId("replicas"), frame);
  showSharedCaches(byId("shared-caches"), byId("shared-caches-table"), frame);
  decisions.show(frame.decisions);
  ask.offer(frame.partitions);
}

function sums(frame) {
  const all = [...rows.values()];
  const sum = (of) => all.reduce((total, row) => total + of(row), 0);
  return {
    ranks: all.length,
    fit: sum((row) => Number(row.mood !== "off")),
    busy: sum((row) => Number(row.busy)),
    live: sum((row) => row.requests),
    prefillTokens: sum((row) => row.prefillTokens),
    events: sum((row) => row.eventsPerS ?? 0),
    unconnected: sum((row) => Number(row.eventState === "unconnected")),
    waiting: frame.partitions.reduce((total, { ranks }) => total + ranks.pending_count, 0),
  };
}

function summarise(now) {
  const texts = {
    "ranks in service": `${count(now.fit)} of ${count(now.ranks)}`,
    busy: count(now.busy),
    "live requests": count(now.live),
    waiting: count(now.waiting),
    "prefill tokens": count(now.prefillTokens),
    "decisions/s": rate(now.decisionsPerS),
    "cache hits": share(now.hit),
    "events/s": rate(now.events),
    "without events": count(now.unconnected),
  };
  for (const [name, text] of Object.entries(texts)) {
    if (!tiles.has(name)) {
      tiles.set(name, el("dd"));
      byId("summary").append(el("div", {}, el("dt", {}, name), tiles.get(name)));
    }
    setText(tiles.get(name), text);
  }
}

async function why({ decision, pair }) {
  const path = pair ? `decisions/${pair.number}?by=pair` : `decisions/${decision}?by=number`;
  const body = byId("why-body");
  body.replaceChildren(el("p", { class: "facts" }, "…"));
  byId("why").showModal();
  try {
    body.replaceChildren(candidatesOf(await get(path)));
  } catch (error) {
    body.replaceChildren(el("p", { class: "error" }, error.message));
  }
}

// Shows the key dialog; resolves once a key was entered.
function needKey(text) {
  const [dialog, form] = [byId("key"), byId("key-form")];
  setText(byId("key-text"), text);
  dialog.showModal();
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  return new Promise((done) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey(form.elements.key.value.trim());
      form.reset();
      dialog.close();
      done();
    }, { once: true });
  });
}

function onState(state, text) {
  setData(byId("connection"), "state", state);
  setText(byId("connection"), text);
}

byId("why-close").addEventListener("click", () => byId("why").close());
watch({ onHistory: showHistory, onFrame: show, onState, needKey });
