// Tables of the queue and of the replicas.

import { el, table } from "./dom.js";
import { age, count } from "./numbers.js";

const NOT_SHOWN = "Hidden: the API key has no permission to see this.";

const CLASSES = [
  { title: "class", of: (row) => row.policy_class },
  { title: "requests", number: true, of: (row) => count(row.waiting_requests) },
  { title: "prompt tokens", number: true, of: (row) => count(row.waiting_isl_tokens) },
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

const empty = (text) => el("p", { class: "empty" }, text);

export function showQueue(root, frame) {
  root.replaceChildren(queueOf(frame));
}

function queueOf({ queue, queueing }) {
  if (queue === undefined) return empty(NOT_SHOWN);
  if (!queueing) return empty("Queueing is off: requests are placed or refused at once.");
  return queue.length ? table(CLASSES, queue) : empty("No request has waited yet.");
}

export function showReplicas(root, frame) {
  root.replaceChildren(replicasOf(frame));
}

function replicasOf({ queue, replicas }) {
  if (queue === undefined) return empty(NOT_SHOWN);
  if (!replicas) return empty("This selector has no replicas.");
  return replicas.peers.length ? table(PEERS, replicas.peers) : empty("No peer is registered.");
}
