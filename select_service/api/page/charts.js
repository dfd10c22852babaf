// Charts: the last ten minutes from the service's history, then a point for every frame.

import uPlot from "./uPlot.esm.js";
import { el } from "./dom.js";
import { count, rate, share } from "./numbers.js";

const POINTS_MAX = 900;
const HEIGHT = 170;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
const clock = (time_s) => new Date(1000 * time_s).toLocaleTimeString([], { hourCycle: "h23" });
const CHARTS = [
  {
    title: "Prompt blocks found in the cache",
    scale: { range: (_, low, high) => [0, Math.max(1, high ?? 0)] },
    value: share,
    series: [
      { label: "on the chosen rank", color: "--kv", of: (now) => now.hit },
      { label: "most on any rank", color: "--muted", dash: [4, 4], of: (now) => now.best },
    ],
  },
  {
    title: "Decisions per second",
    value: rate,
    series: [{ label: "decisions", color: "--load", of: (now) => now.decisionsPerS ?? undefined, fill: true }],
  },
  {
    title: "Requests",
    value: count,
    incrs: WHOLE, // no axis labels at half requests
    series: [
      { label: "live", color: "--load", of: (now) => now.live },
      { label: "waiting", color: "--warn", of: (now) => now.waiting },
    ],
  },
];

export class Charts {
  #drawn = [];
  #times = [];

  constructor(root) {
    for (const chart of CHARTS) {
      const box = el("div", { class: "chart" });
      root.append(el("figure", {}, el("figcaption", {}, chart.title), box));
      this.#drawn.push({ chart, box, data: chart.series.map(() => []), plot: null });
    }
    const again = () => this.#drawn.forEach((each) => this.#draw(each));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    const fit = new ResizeObserver(() => this.#drawn.forEach(({ plot, box }) =>
      plot?.setSize({ width: box.clientWidth, height: HEIGHT })));
    for (const { box } of this.#drawn) fit.observe(box);
    again();
  }

  // Replaces all points.  points: [[time_s, values for the series], …]
  begin(points) {
    this.#times.length = 0;
    for (const { data } of this.#drawn) for (const series of data) series.length = 0;
    for (const [time_s, then] of points) this.#push(time_s, then);
    for (const drawn of this.#drawn) this.#show(drawn);
  }

  // Adds a point.  now: values for the series
  add(time_s, now) {
    this.#push(time_s, now);
    for (const drawn of this.#drawn) this.#show(drawn);
  }

  #push(time_s, now) {
    keep(this.#times, time_s);
    for (const { chart, data } of this.#drawn) {
      chart.series.forEach((series, i) => keep(data[i], series.of(now)));
    }
  }

  #show({ data, plot }) {
    plot.setData([this.#times, ...data]);
    showNewest(plot);
  }

  #draw(drawn) {
    const { chart, box, data } = drawn;
    drawn.plot?.destroy();
    drawn.plot = new uPlot(options(chart, box.clientWidth), [this.#times, ...data], box);
    showNewest(drawn.plot);
  }
}

function keep(values, value) {
  values.push(value);
  if (values.length > POINTS_MAX) values.shift();
}

// Shows the newest values in the legend while the pointer is off the chart.
function showNewest(plot) {
  if (plot.cursor.left >= 0 || !plot.data[0].length) return;
  plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

function options(chart, width) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: color("--muted"), size: 28, grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: width || 300,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false, y: false } },
    hooks: { setCursor: [showNewest] },
    scales: { y: chart.scale ?? { range: (_, low, high) => [0, Math.max(1, 1.1 * (high ?? 0))] } },
    axes: [
      { ...axis, space: 80, values: (_, ticks) => ticks.map(clock) },
      { ...axis, size: 48, incrs: chart.incrs, values: (_, ticks) => ticks.map(chart.value) },
    ],
    series: [
      { label: "at", value: (_, time) => (time === null ? "" : clock(time)) },
      ...chart.series.map((series) => ({
        label: series.label,
        stroke: color(series.color),
        fill: series.fill ? `${color(series.color)}22` : undefined,
        dash: series.dash,
        width: 2,
        points: { show: false },
        value: (_, value) => (value === null || value === undefined ? "–" : chart.value(value)),
      })),
    ],
  };
}
