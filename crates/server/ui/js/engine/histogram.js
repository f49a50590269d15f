// Latency histograms as bars, one a bucket, with the percentiles of the last seconds beside them.

import { h } from "../dom.js";
import { count, duration } from "./format.js";
import { RecentCounts } from "./history.js";
import { color } from "./palette.js";

const HEIGHT = 120;
const BASE = HEIGHT - 22;

/** The part of the buckets that holds anything: `[first, last]`. */
function extent(counts) {
  const first = counts.findIndex((number) => number > 0);
  return first < 0 ? null : [Math.max(0, first - 1), Math.min(counts.length - 1, counts.findLastIndex((number) => number > 0) + 1)];
}

export class LatencyCard {
  #recent = new RecentCounts();
  #drawn = "";

  /** `metric` names the histogram, `key` the percentiles in `window`, `meaning` says whose clock and what is measured. */
  constructor({ title, metric, key, meaning, colorName }) {
    Object.assign(this, { title, metric, key, colorName });
    this.figures = new Map(["p50", "p90", "p99", "mean"].map((name) => [name, h("dd", { data: { latency: `${key}.${name}` } })]));
    this.canvas = h("canvas.histogram", { attrs: { role: "img" }, on: { pointermove: (event) => this.#point(event), pointerleave: () => this.#point(null) } });
    this.hint = h("p.hint");
    this.root = h("section.card", { attrs: { "aria-label": title } },
      h("div.card-head", {}, h("h2", { textContent: title }), h("span.hint", { textContent: meaning })),
      h("dl.figures", {}, ...[...this.figures].map(([name, value]) => h("div", {}, h("dt", { textContent: name }), value))),
      this.canvas, this.hint);
    new ResizeObserver(() => this.#redraw()).observe(this.canvas);
  }

  /** `sinceStart`: everything the server has seen, else the last minute. */
  show(state, sinceStart) {
    const window = state.window[this.key] ?? null;
    for (const [name, value] of this.figures) {
      const text = duration(window?.[name] ?? Number.NaN);
      if (value.textContent !== text) value.textContent = text;
    }
    const histogram = state.histograms[this.metric];
    if (histogram === undefined) return;
    this.#recent.push(state.timeMs, histogram.counts);
    this.bounds = histogram.bounds;
    this.counts = sinceStart ? histogram.counts : this.#recent.of(histogram.counts);
    this.when = sinceStart ? "since the start" : "in the last minute";
    const drawn = `${this.when} ${this.counts.join()}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.#redraw();
    this.#point(null);
  }

  #label(bucket) {
    return bucket < this.bounds.length ? `≤ ${duration(this.bounds[bucket])}` : `> ${duration(this.bounds.at(-1))}`;
  }

  #redraw() {
    const width = this.canvas.clientWidth;
    if (width === 0 || this.counts === undefined) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(HEIGHT * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = color("--c-grid");
    context.fillRect(0, BASE, width, 1);
    this.shown = extent(this.counts);
    context.fillStyle = color("--muted");
    context.textAlign = "center";
    if (this.shown === null) {
      context.fillText("nothing measured", width / 2, HEIGHT / 2);
      return;
    }
    this.#bars(context, width);
  }

  #bars(context, width) {
    const [first, last] = this.shown;
    const most = Math.max(...this.counts);
    const pitch = width / (last - first + 1);
    const every = Math.ceil(58 / pitch);
    for (let bucket = first; bucket <= last; bucket++) {
      const x = (bucket - first) * pitch;
      const height = this.counts[bucket] === 0 ? 0 : Math.max(2, (this.counts[bucket] / most) * (BASE - 6));
      context.fillStyle = color(this.colorName);
      context.fillRect(x + 1, BASE - height, Math.max(1, pitch - 2), height);
      // A bound is the edge between two bars.
      if (bucket < last && bucket < this.bounds.length && (bucket - first) % every === 0) {
        context.fillStyle = color("--muted");
        context.fillText(duration(this.bounds[bucket]), Math.min(width - 24, Math.max(24, x + pitch)), HEIGHT - 7);
      }
    }
  }

  #point(event) {
    if (this.counts === undefined) return;
    const total = this.counts.reduce((sum, number) => sum + number, 0);
    let text = `${count(total)} ${this.when}`;
    if (event !== null && this.shown) {
      const [first, last] = this.shown;
      const bucket = first + Math.floor((event.offsetX / this.canvas.clientWidth) * (last - first + 1));
      if (bucket >= 0 && bucket < this.counts.length) text = `${this.#label(bucket)}: ${count(this.counts[bucket])} of ${text}`;
    }
    this.hint.textContent = text;
    this.canvas.setAttribute("aria-label", `${this.title}, histogram: ${text}`);
  }

  restyle() {
    this.#redraw();
  }
}
