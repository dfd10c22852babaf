// Conversion of the service's history of ten minutes into points of the charts.

const WINDOW = 3; // samples per rate: about the window of live rates (see rates.js)

// Returns [[time_s, values], …] for `Charts.begin`.  history: columns of samples, oldest first
export function pointsOf(history, now_s) {
  const { ages_s: ages } = history;
  const points = [];
  for (let i = 1; i < ages.length; i += 1) {
    const from = Math.max(0, i - WINDOW);
    const seconds = ages[from] - ages[i];
    const sum = (name) => history[name].slice(from + 1, i + 1).reduce((total, n) => total + n, 0);
    const blocks = sum("prompt_blocks");
    points.push([now_s - ages[i], {
      decisionsPerS: seconds > 0 ? sum("decided") / seconds : null,
      hit: blocks > 0 ? sum("chosen_overlap") / blocks : null,
      best: blocks > 0 ? sum("best_overlap") / blocks : null,
      live: history.live[i],
      waiting: history.waiting[i],
    }]);
  }
  return points;
}
