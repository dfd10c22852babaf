// Tables of the queue, of pairs, of the replicas and of shared caches.

import { el, table } from "./dom.js";
import { age, cost, count, share } from "./numbers.js";

const NOT_SHOWN = "Hidden: the API key has no permission to see this.";

const CLASSES = [
  { title: "class", of: (row) => row.policy_class },
  { title: "requests", number: true, of: (row) => count(row.waiting_requests) },
  { title: "prompt tokens", number: true, of: (row) => count(row.waiting_isl_tokens) },
  { title: "late", number: true, hint: "Requests whose deadline_ms was not met", of: (row) => count(row.deadline_exceeded) },
  { title: "fairness_id", hint: "Those with most waiting requests",
    of: (row) => row.flows.map((flow) => `${flow.fairness_id || "(none)"} ${count(flow.waiting_requests)}`).join(", ") },
];

const PEERS = [
  { title: "peer", of: (peer) => peer.endpoint },
  { title: "connection", of: (peer) => (peer.self ? "itself" : peer.connected ? "connected" : "× none") },
  { title: "last message", of: (peer) => age(peer.seconds_since_last_frame) },
  { title: "differs by", number: true, hint: "Reservations known to one side only",
    of: (peer) => count(peer.divergence_reservations) },
  { title: "tokens", number: true, hint: "Prefill tokens counted by one side only",
    of: (peer) => count(peer.divergence_prefill_tokens) },
  { title: "lost", number: true, hint: "Events known to be lost", of: (peer) => count(peer.lost) },
  { title: "repairs", number: true, of: (peer) => count(peer.repairs.runs) },
  { title: "last error", of: (peer) => peer.last_error ?? "" },
];

const PAIRS = [
  { title: "fact", of: (row) => row.name },
  { title: "number", number: true, of: (row) => count(row.value) },
];

const LINKS = [
  { title: "host", of: (link) => link.host },
  { title: "tokens to leave", number: true, hint: "Booked on the host's link, without a first token",
    of: (link) => count(link.leaving) },
  { title: "tokens to enter", number: true, hint: "Booked on the host's link, without a first token",
    of: (link) => count(link.entering) },
];

const SHARED_CACHES = [
  { title: "model", of: (cache) => cache.model_name },
  { title: "cache", of: (cache) => `${cache.kind} ${cache.url}` },
  { title: "state", hint: "Whether the latest look-up was answered in time", of: stateOfCache },
  { title: "hits", number: true, hint: "Share of hits among answered look-ups", of: (cache) => share(cache.hit_rate) },
  { title: "look-ups", number: true, of: (cache) => count(Object.values(cache.lookups).reduce((a, b) => a + b, 0)) },
  { title: "request, ms", number: true, hint: "Moving mean, with late answers", of: (cache) => cost(cache.request_ms) },
  { title: "last error", of: (cache) => (cache.last_error ? `${age(cache.error_s)}: ${cache.last_error}` : "") },
];

function stateOfCache({ answering, breaker_open: isOpen, changed_s: changed }) {
  if (answering === null) return "not used yet";
  const state = answering ? "answers" : isOpen ? "× suspended" : "× fails or is late";
  return `${state}, began ${age(changed)}`;
}

const empty = (text) => el("p", { class: "empty" }, text);

export function showQueue(root, frame) {
  root.replaceChildren(queueOf(frame));
}

function queueOf({ queue, queueing }) {
  if (queue === undefined) return empty(NOT_SHOWN);
  if (!queueing) return empty("Queueing is off: requests are placed or refused at once.");
  return queue.length ? table(CLASSES, queue) : empty("No request has waited yet.");
}

export function showPairs(root, frame) {
  root.replaceChildren(...pairsOf(frame));
}

function pairsOf({ queue, pairs }) {
  if (queue === undefined) return [empty(NOT_SHOWN)];
  if (!pairs) return [empty("No pair has been chosen yet.")];
  const { prefill_legs, decode_legs, remote, local, transfers, lost_legs, links } = pairs;
  const facts = table(PAIRS, [
    { name: "Live prefill legs", value: prefill_legs }, { name: "Live decode legs", value: decode_legs },
    { name: "Chosen on two ranks", value: remote }, { name: "Chosen on one rank", value: local },
    { name: "Transfers on their way", value: transfers }, { name: "Lost prefill legs", value: lost_legs },
  ]);
  return links.length ? [facts, table(LINKS, links)] : [facts];
}

export function showReplicas(root, frame) {
  root.replaceChildren(replicasOf(frame));
}

function replicasOf({ queue, replicas }) {
  if (queue === undefined) return empty(NOT_SHOWN);
  if (!replicas) return empty("This selector has no replicas.");
  return replicas.peers.length ? table(PEERS, replicas.peers) : empty("No peer is registered.");
}

// Shows the section only where prompts are looked up.
export function showSharedCaches(section, root, { shared_caches: caches }) {
  section.hidden = !caches;
  root.replaceChildren(...(caches ? [table(SHARED_CACHES, caches)] : []));
}
