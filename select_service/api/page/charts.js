// What was seen since the page was opened, a point for every frame.

import uPlot from "./uPlot.esm.js";
import { el } from "./dom.js";
import { count, rate, share } from "./numbers.js";

const POINTS_MAX = 900;
const HEIGHT = 170;
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
    series: [{ label: "decisions", color: "--load", of: (now) => now.decisionsPerS, fill: true }],
  },
  {
    title: "Requests",
    value: count,
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

  // now: what each series takes its value of
  add(time_s, now) {
    this.#times.push(time_s);
    if (this.#times.length > POINTS_MAX) this.#times.shift();
    for (const { chart, data, plot } of this.#drawn) {
      chart.series.forEach((series, i) => {
        data[i].push(series.of(now));
        if (data[i].length > POINTS_MAX) data[i].shift();
      });
      plot.setData([this.#times, ...data]);
    }
  }

  #draw(drawn) {
    const { chart, box, data } = drawn;
    drawn.plot?.destroy();
    drawn.plot = new uPlot(options(chart, box.clientWidth), [this.#times, ...data], box);
  }
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
    scales: { y: chart.scale ?? { range: (_, low, high) => [0, Math.max(1, 1.1 * (high ?? 0))] } },
    axes: [
      { ...axis, space: 80, values: (_, ticks) => ticks.map(clock) },
      { ...axis, size: 48, values: (_, ticks) => ticks.map(chart.value) },
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
