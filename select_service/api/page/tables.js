// Tables of the queue, of pairs and of the replicas.

import { el, table } from "./dom.js";
import { age, count } from "./numbers.js";

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
