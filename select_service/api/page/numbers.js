// Formatting of numbers for people.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, useGrouping: true });

export const count = (n) => (Math.abs(n) < 100_000 ? plain : short).format(n);
export const cost = (x) => (x === null ? "–" : fine.format(x));
export const share = (x) => (x === null || x === undefined ? "–" : `${Math.round(100 * x)} %`);
export const rate = (x) => (x === null ? "–" : x < 10 ? x.toFixed(1) : count(x));

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  if (seconds < 10) return `${seconds.toFixed(1)} s ago`;
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}
