// One decision with the terms of all its candidates side by side.

import { el, table } from "./dom.js";
import { cost, count } from "./numbers.js";
import { rankText } from "./decisions.js";

const CHOICES = {
  cheapest: "it alone has the lowest cost",
  tie: "drawn among those that cost the least",
  drawn: "drawn by chance, as the temperature says",
  pinned: "the request named it",
  only: "no other might be chosen",
};
const KNOWN = [
  ["requests", "active_requests", "Live requests"],
  ["prefill", "prefill_tokens", "Prompt tokens that were booked"],
  ["left", "left_work_tokens", "Prompt tokens that are still to be computed"],
  ["active", "active_blocks", "Blocks that live requests hold"],
  ["run", "leading_run", "Leading blocks of the prompt that live requests have"],
  ["cached", "external_blocks", "Leading blocks of the prompt that it holds, in whatever storage"],
  ["on GPU", "gpu_blocks", "Those of them in GPU memory"],
  ["+wait", "extra_wait_tokens", "Work before the prompt, above the least of the candidates"],
  ["+prefill", "extra_prefill_tokens", "What the prompt would compute, above the least of the candidates"],
];

const FACTORS = {
  weight: "How fit the rank is, up to 1: its cost is divided by it",
  speed: "Its declared prefill speed over the median: its cost is divided by it",
  factor: "What preferred taints of the request multiply its cost by",
};
const TERMS = {
  raw: "Prompt tokens that are booked here and all of this prompt's, in blocks",
  credit: "Cached blocks of the prompt, by what they are worth, which come off raw",
  prefill: "Raw less credit: what is to be computed, in blocks",
  cached_tokens: "Tokens of the prompt that it holds, weighed by storage",
  effective_prefill_tokens: "Tokens of the prompt that are not cached here",
  own_work: "Prompt tokens that this prompt would still have to compute here",
  booked_work: "Prompt tokens that unfinished prompts would compute here in all",
  progress: "Of the oldest unfinished prompt, tokens that its KV events show to be done",
  left_price: "What waits before the prompt: booked work less progress",
  share_price: "How much dearer own work is because steps serve live requests, too",
  request_price: "What live requests cost, each the same",
  live_price: "What tokens that are active here cost; 0 unless decode counts",
  memory_price: "What tokens cost that the KV cache has hardly room for",
  outside_price: "What it costs to leave the ranks that this replica uses first",
  decode: "Blocks of live requests and of this prompt, shared ones once",
};

const RANK = { title: "rank", hint: "Worker and data-parallel rank; ★ was chosen", of: (row) => (row.chosen ? `★ ${rankText(row)}` : rankText(row)) };

const COST = { title: "cost", hint: "What the terms come to; the lowest is chosen", number: true, of: (row) => cost(row.terms.cost ?? null) };

// view: a DecisionView
export function candidatesOf(view) {
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

function facts(view) {
  const chosen = view.candidates.find((row) => row.chosen);
  const shown = view.candidates.length;
  const some = shown < view.candidate_count ? `; the ${shown} that matter are shown` : "";
  const verdict = chosen ? `Rank ${rankText(chosen)} of ${view.candidate_count} candidates: ${CHOICES[view.choice]}` : "";
  const prompt = `${count(view.isl_tokens)} tokens, ${count(view.prompt_blocks)} blocks of ${view.block_size}; `
    + `${view.model_name}, tenant ${view.tenant_id}, policy ${view.policy}`;
  const notes = [];
  if (view.would_wait) notes.push("It would wait: no rank has room now.");
  if (view.waited) notes.push(`It waited ${view.waited.seconds.toFixed(2)} s in class ${view.waited.policy_class}.`);
  if (view.reported_share < 0.5) notes.push("Few ends of prefills are reported, so what is booked counts less.");
  return [el("p", { class: "verdict" }, `${verdict}${some}.`), el("p", { class: "facts" }, prompt),
    ...notes.map((note) => el("p", { class: "facts" }, note))];
}
