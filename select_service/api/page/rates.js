// Rates per second from the cumulative counts of frames: events by rank, decisions, and the overlap
// of prompts.

const WINDOW_S = 5;

export const nameOf = (workerId, dpRank) => `${workerId}/${dpRank}`;

// Window of recent frames; `add` returns the rates over the last WINDOW_S seconds.
export class Rates {
  #seen = [];

  add(frame, now_s) {
    const counted = countsOf(frame, now_s);
    const last = this.#seen.at(-1);
    if (last && counted.decided < last.decided) this.#seen = []; // the service was restarted
    this.#seen.push(counted);
    while (this.#seen.length > 2 && this.#seen[1].now_s <= now_s - WINDOW_S) this.#seen.shift();
    const before = this.#seen[0];
    const seconds = now_s - before.now_s;
    const since = (name) => counted[name] - before[name];
    const blocks = since("promptBlocks");
    return {
      decisionsPerS: seconds ? since("decided") / seconds : null,
      hit: blocks > 0 ? since("chosenOverlap") / blocks : null,
      best: blocks > 0 ? since("bestOverlap") / blocks : null,
      eventsPerS: (rank) => perSecond(counted.events, before.events, rank, seconds),
    };
  }
}

function countsOf(frame, now_s) {
  const sum = (name) => frame.partitions.reduce((total, part) => total + part[name], 0);
  const events = new Map();
  for (const { ranks } of frame.partitions) {
    ranks.worker_ids.forEach((id, i) =>
      events.set(nameOf(id, ranks.dp_ranks[i]), ranks.event_batches[i]));
  }
  return {
    now_s,
    events,
    decided: sum("decided"),
    promptBlocks: sum("prompt_blocks"),
    chosenOverlap: sum("chosen_overlap"),
    bestOverlap: sum("best_overlap"),
  };
}

function perSecond(counted, before, rank, seconds) {
  if (!seconds || !before.has(rank)) return null;
  return Math.max(0, (counted.get(rank) ?? 0) - before.get(rank)) / seconds;
}
