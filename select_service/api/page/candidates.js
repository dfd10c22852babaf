// Table of one decision: the cost terms of all candidates side by side.

import { el, table } from "./dom.js";
import { cost, count } from "./numbers.js";
import { rankText } from "./decisions.js";

const CHOICES = {
  cheapest: "the lowest cost",
  tie: "random among ranks of equal lowest cost",
  drawn: "random, weighted by the temperature",
  pinned: "pinned by the request",
  only: "the only eligible rank",
};
const KNOWN = [
  ["requests", "active_requests", "Live requests"],
  ["prefill", "prefill_tokens", "Booked prompt tokens, not yet computed"],
  ["left", "left_work_tokens", "Prompt tokens left to compute"],
  ["active", "active_blocks", "Blocks held by live requests"],
  ["run", "leading_run", "Leading blocks of the prompt shared with live requests"],
  ["cached", "external_blocks", "Leading blocks of the prompt held by the rank, in any storage"],
  ["on GPU", "gpu_blocks", "Leading blocks of the prompt in GPU memory"],
  ["shared", "shared_credit_tokens", "Prefill tokens credited for a shared cache, behind the cached blocks"],
  ["+wait", "extra_wait_tokens", "Work queued before the prompt, above the minimum of the candidates"],
  ["+prefill", "extra_prefill_tokens", "Prompt tokens to compute here, above the minimum of the candidates"],
];

const FACTORS = {
  weight: "Health weight of the rank, up to 1; divides the cost",
  speed: "Declared prefill speed relative to the median; divides the cost",
  factor: "Factor on the cost from the preferred taints of the request",
};
const TERMS = {
  raw: "Booked prompt tokens plus all tokens of this prompt, in blocks",
  credit: "Cached blocks of the prompt, weighted by tier; subtracted from raw",
  prefill: "Raw minus credit: work to compute, in blocks",
  cached_tokens: "Cached tokens of the prompt, weighted by tier",
  effective_prefill_tokens: "Tokens of the prompt that are not cached here",
  own_work: "Tokens of this prompt left to compute here",
  booked_work: "Prompt tokens to compute here for all unfinished prefills",
  progress: "Computed tokens of the oldest unfinished prefill, according to KV events",
  left_price: "Work queued before the prompt: booked work minus progress",
  share_price: "Extra cost of own work, because steps also serve live requests",
  request_cost: "Cost of the live requests, in blocks; 0 unless a weight is set",
  request_price: "Fixed cost for each live request",
  live_price: "Cost of active tokens; 0 unless decode counts",
  memory_price: "Cost of tokens that hardly fit into the KV cache",
  copy_price: "Cost of computing on a full rank what another rank holds; 0 unless copies have a price",
  outside_price: "Cost of using a rank outside this replica's preferred ranks",
  decode: "Blocks of live requests and of this prompt; shared blocks count once",
};

const RANK = { title: "rank", hint: "Worker and data-parallel rank; ★ marks the choice", of: (row) => (row.chosen ? `★ ${rankText(row)}` : rankText(row)) };

const COST = { title: "cost", hint: "Total cost from all terms; the lowest is chosen", number: true, of: (row) => cost(row.terms.cost ?? null) };

const LEGS = [
  { title: "leg", of: (leg) => leg.leg },
  { title: "rank", hint: "Worker and data-parallel rank", of: rankText },
  { title: "cached", hint: "Prompt tokens that the rank holds", number: true, of: (leg) => count(leg.cached_tokens) },
  { title: "own work", hint: "Prompt tokens that the rank would compute", number: true, of: (leg) => count(leg.own_work) },
];
const REASONS = {
  cheaper: "the cheaper way",
  only_choice: "the only way",
  requested: "the way of the request",
  threshold: "by the conditional rule",
};

function pairOf(view) {
  const { path, reason, legs, remote_cost, local_cost, move_tokens, move_cost } = view.pair;
  const [prefill, decode] = legs.map(rankText);
  const place = path === "local" ? `Rank ${decode} for both legs` : `Prefill on ${prefill}, decode on ${decode}`;
  const costs = `Two ranks cost ${cost(remote_cost)}, one rank ${cost(local_cost)} tokens of prefill work; `
    + `${count(move_tokens)} tokens move, for ${cost(move_cost)}.`;
  return el("div", {}, el("p", { class: "verdict" }, `${place}: ${REASONS[reason] ?? reason}.`),
    el("p", { class: "facts" }, costs), el("p", { class: "facts" }, promptText(view)), table(LEGS, legs));
}

// view: a DecisionView
export function candidatesOf(view) {
  if (view.pair) return pairOf(view);
  const rows = view.candidates;
  const usual = (name) => rows.every((row) => row[name] === 1);
  const known = KNOWN.filter(([, name]) => rows.some((row) => row[name]))
    .map(([title, name, hint]) => ({ title, hint, number: true, of: (row) => count(row[name]) }));
  const factors = ["weight", "speed", "factor"].filter((name) => !usual(name))
    .map((title) => ({ title, hint: FACTORS[title], number: true, of: (row) => cost(row[title]) }));
  const names = Object.keys(rows[0]?.terms ?? {});
  const terms = names.filter((name) => name !== "cost" && rows.some((row) => row.terms[name]))
    .map((name) => ({
      title: name.replaceAll("_", " "), hint: TERMS[name] ?? FACTORS[name], number: true,
      of: (row) => cost(row.terms[name]),
    }));
  const columns = [RANK, COST, ...known, ...factors, ...terms];
  return el("div", {}, ...facts(view),
    table(columns, rows, (row) => (row.chosen ? { class: "chosen" } : {})));
}

function promptText(view) {
  return `${count(view.isl_tokens)} tokens, ${count(view.prompt_blocks)} blocks of ${view.block_size}; `
    + `${view.model_name}, tenant ${view.tenant_id}, policy ${view.policy}`;
}

function facts(view) {
  const chosen = view.candidates.find((row) => row.chosen);
  const shown = view.candidates.length;
  const some = shown < view.candidate_count ? `; ${shown} shown` : "";
  const verdict = chosen ? `Rank ${rankText(chosen)} of ${view.candidate_count} candidates: ${CHOICES[view.choice]}` : "";
  const notes = [];
  if (view.would_wait) notes.push("The request would wait: no rank has capacity now.");
  if (view.refusal) notes.push(`The request would be refused: ${view.refusal.error}.`);
  if (view.waited) notes.push(`The request waited ${view.waited.seconds.toFixed(2)} s in class ${view.waited.policy_class}.`);
  if (view.reported_share < 0.5) notes.push("Few ends of prefills are reported, so what is booked counts less.");
  return [el("p", { class: "verdict" }, `${verdict}${some}.`), el("p", { class: "facts" }, promptText(view)),
    ...notes.map((note) => el("p", { class: "facts" }, note))];
}
