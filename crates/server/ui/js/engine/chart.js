// One chart over time, with a legend that tells the newest values, or those under the pointer.

import uPlot from "../../vendor/uplot-1.6.32/uPlot.esm.js";
import { h } from "../dom.js";
import { color, faint } from "./palette.js";

const LEAST_HEIGHT = 150;
const AXIS_FONT = "11px system-ui, sans-serif";

/** All charts share the pointer. */
const sync = uPlot.sync("engine");

export class Chart {
  #plot = null;
  #data = [];
  #hovered = null;

  /**
   * `series`: `[{column, label, color, format, fill, sparse}]`; a sparse one is drawn through samples that have nothing. `stacked` fills them one
   * on another. `max` fixes the y axis, `axis` formats its numbers.
   */
  constructor({ title, series, stacked = false, max = null, axis = String }) {
    Object.assign(this, { title, series, stacked, max, axis });
    this.values = series.map(() => h("span.legend-value"));
    const legend = h("ul.legend", {}, ...series.map((line, index) =>
      h("li", {}, h(`span.swatch.${line.color.slice(2)}`, { attrs: { "aria-hidden": "true" } }), `${line.label} `, this.values[index])));
    this.box = h("div.plot", { attrs: { role: "img" } });
    this.root = h("section.card.chart", { attrs: { "aria-label": title } }, h("div.card-head", {}, h("h2", { textContent: title }), legend), this.box);
    this.resizes = new ResizeObserver(() => this.#resize());
    this.resizes.observe(this.box);
  }

  columns() {
    return this.series.map((line) => line.column);
  }

  #options() {
    const axis = { stroke: color("--muted"), font: AXIS_FONT, grid: { stroke: color("--c-grid"), width: 1 }, ticks: { show: false } };
    const lines = this.series.map((line) => ({
      label: line.label, stroke: color(line.color), width: 1.5, points: { show: false }, spanGaps: line.sparse === true,
      fill: this.stacked ? undefined : line.fill ? faint(line.color, 0.15) : undefined,
    }));
    // A band's fill goes from a line down to the one below it, so each part of the stack keeps its own colour.
    const bands = this.stacked ? lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1], fill: faint(this.series[index + 1].color, 0.6) })) : [];
    if (this.stacked) lines[0].fill = faint(this.series[0].color, 0.6);
    return {
      ...this.#size(), padding: [8, 28, 0, 0], legend: { show: false },
      cursor: { sync: { key: sync.key }, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: true }, y: { range: (_, least, most) => [Math.min(0, least ?? 0), this.max ?? Math.max(1, (most ?? 1) * 1.08)] } },
      axes: [{ ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 52, space: 32, values: (_, ticks) => ticks.map(this.axis) }],
      series: [{}, ...lines], bands, hooks: { setCursor: [(plot) => this.#point(plot.cursor.idx)] },
    };
  }

  #point(index) {
    this.#hovered = index ?? null;
    this.#tell();
  }

  /** `data` as from `History.data`; `raw` the columns before they were stacked; `to` the right edge, seconds. */
  show(data, raw, seconds, to) {
    this.#data = raw;
    this.edges = { min: to - seconds, max: to };
    if (this.#plot === null) {
      if (this.box.clientWidth === 0) return;
      this.#plot = new uPlot(this.#options(), data, this.box);
    } else {
      this.#plot.setData(data, false);
    }
    this.#plot.setScale("x", this.edges);
    this.#tell();
  }

  #tell() {
    const at = this.#hovered ?? (this.#data[0]?.length ?? 0) - 1;
    const said = this.series.map((line, index) => {
      const value = this.#data[index + 1]?.[at] ?? null;
      const text = value === null ? "–" : line.format(value);
      if (this.values[index].textContent !== text) this.values[index].textContent = text;
      return `${line.label} ${text}`;
    });
    this.box.setAttribute("aria-label", `${this.title}: ${said.join(", ")}`);
  }

  #size() {
    return { width: Math.max(120, this.box.clientWidth), height: Math.max(LEAST_HEIGHT, this.box.clientHeight) };
  }

  #resize() {
    const { width, height } = this.#size();
    const plot = this.#plot;
    if (plot !== null && this.box.clientWidth > 0 && (width !== plot.width || height !== plot.height)) plot.setSize({ width, height });
  }

  /** Forgets the plot: the next `show` draws it anew, in the theme's colours. */
  restyle() {
    this.#plot?.destroy();
    this.#plot = null;
  }
}

const two = (value) => String(value).padStart(2, "0");

function clock(seconds) {
  const date = new Date(seconds * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
