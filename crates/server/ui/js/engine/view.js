// The engine view: reads `/izar/stats` while it is in front and the tab is seen, and draws each sample once.

import { h, textButton } from "../dom.js";
import { loadSetting, saveSetting } from "../store.js";
import { Chart } from "./chart.js";
import { Facts, Tiles } from "./facts.js";
import { count, duration, rate } from "./format.js";
import { LatencyCard } from "./histogram.js";
import { History } from "./history.js";
import { RingGrid } from "./ring_grid.js";
import { Stats } from "./stats.js";
import { StepTimeline } from "./step_timeline.js";
import { ValuesTable } from "./values_table.js";

const RANGES = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];

const milliseconds = (value) => `${rate(value)} ms`;
const share = (value) => `${rate(value)} %`;

const CHARTS = {
  batch: {
    title: "Sequences", axis: count,
    series: [
      { column: "running", label: "running", color: "--c-decode", format: count, fill: true },
      { column: "waiting", label: "waiting", color: "--c-prefill", format: count },
      { column: "paused", label: "paused", color: "--c-paused", format: count },
    ],
  },
  speed: {
    title: "Tokens a second", axis: count,
    series: [
      { column: "output", label: "output", color: "--c-decode", format: rate, fill: true },
      { column: "prompt", label: "prompts", color: "--c-prefill", format: rate },
    ],
  },
  kv: {
    title: "KV blocks", axis: count, stacked: true,
    series: [
      { column: "owned", label: "owned", color: "--c-decode", format: count },
      { column: "cached", label: "cached", color: "--c-cached", format: count },
      { column: "free", label: "free", color: "--c-empty", format: count },
    ],
  },
  itl: {
    title: "Time between tokens", axis: (value) => duration(value / 1000),
    series: [
      { column: "itlP50", label: "p50", color: "--c-decode", format: milliseconds, sparse: true },
      { column: "itlP99", label: "p99", color: "--c-paused", format: milliseconds, sparse: true },
    ],
  },
  cpu: {
    title: "Host CPU", axis: (value) => `${value} %`, max: 100,
    series: [{ column: "hostCpu", label: "busy", color: "--c-prefill", format: share, fill: true }],
  },
};

const LATENCIES = [
  { title: "TTFT", key: "ttft", metric: "vllm:time_to_first_token_seconds", meaning: "received to first token, server's clock", colorName: "--c-prefill" },
  { title: "ITL", key: "itl", metric: "vllm:inter_token_latency_seconds", meaning: "between tokens, engine's clock", colorName: "--c-decode" },
  { title: "TPOT", key: "tpot", metric: "vllm:request_time_per_output_token_seconds", meaning: "per request, server's clock", colorName: "--c-completed" },
];

const LINKS = {
  off: "", live: "", connecting: "Connecting to the engine's statistics.", lost: "No statistics: trying again.",
  key: "This server asks for an API key.",
};

export class EngineView {
  #inFront = false;
  #frame = null;

  constructor(root, connection, askKey) {
    this.root = root;
    this.connection = connection;
    this.stats = new Stats();
    this.history = new History();
    this.facts = new Facts();
    this.tiles = new Tiles();
    this.ring = new RingGrid();
    this.timeline = new StepTimeline();
    this.values = new ValuesTable();
    this.charts = Object.values(CHARTS).map((options) => new Chart(options));
    this.latencies = LATENCIES.map((options) => new LatencyCard(options));
    this.seconds = loadSetting("range", 60);
    this.sinceStart = loadSetting("sinceStart", false);
    this.#layOut(askKey);
    this.stats.addEventListener("sample", () => this.#sample());
    this.stats.addEventListener("link", () => this.#showLink());
    document.addEventListener("visibilitychange", () => this.#attend());
    addEventListener("themechange", () => this.#restyle());
  }

  #layOut(askKey) {
    const range = h("select.input", { id: "range", on: { change: () => this.#setRange(Number(range.value)) } },
      ...RANGES.map(([seconds, text]) => h("option", { value: seconds, textContent: text, selected: seconds === this.seconds })));
    const since = h("select.input", { id: "since", on: { change: () => this.#setSince(since.value === "start") } },
      h("option", { value: "minute", textContent: "the last minute" }), h("option", { value: "start", textContent: "the server's start", selected: this.sinceStart }));
    this.linkText = h("span");
    this.linkKey = textButton("Enter a key", askKey);
    this.link = h("div.notice", { attrs: { role: "status" } }, this.linkText, this.linkKey);
    const [batch, speed, kv, itl, cpu] = this.charts.map((chart) => chart.root);
    this.root.append(h("div.engine-body", {},
      h("div.engine-head", {}, h("h1", { textContent: "Engine" }),
        h("label.inline", {}, "Charts over", range), h("label.inline", {}, "Histograms since", since)),
      this.link, this.facts.root, this.tiles.root,
      h("div.cards", {}, this.ring.root, h("div.pair", {}, batch, speed), h("div.pair", {}, itl, cpu), kv, this.timeline.root,
        h("div.thirds", {}, ...this.latencies.map((card) => card.root)), this.values.root)));
    this.#showLink();
  }

  enter() {
    this.#inFront = true;
    this.#attend();
  }

  leave() {
    this.#inFront = false;
    this.#attend();
  }

  keyChanged() {
    this.stats.stop();
    this.#attend();
  }

  /** Reads while somebody looks, and only then. */
  #attend() {
    if (this.#inFront && !document.hidden) this.stats.start();
    else if (this.stats.reading) this.stats.stop();
  }

  #showLink() {
    const { link, problem } = this.stats;
    this.link.hidden = LINKS[link] === "";
    this.linkText.textContent = link === "lost" ? `${LINKS.lost} (${problem})` : LINKS[link];
    this.linkKey.hidden = link !== "key";
    this.root.dataset.link = link;
    if (link === "lost") this.connection.check();
  }

  #setRange(seconds) {
    this.seconds = seconds;
    saveSetting("range", seconds);
    this.#drawSoon();
  }

  #setSince(sinceStart) {
    this.sinceStart = sinceStart;
    saveSetting("sinceStart", sinceStart);
    this.#drawSoon();
  }

  #sample() {
    this.history.push(this.stats.state);
    this.#drawSoon();
  }

  /** Several samples before a frame are drawn once. */
  #drawSoon() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      if (this.#inFront) this.#draw();
    });
  }

  #draw() {
    const { state } = this.stats;
    if (state.timeMs === 0) return;
    for (const part of [this.facts, this.tiles, this.ring, this.timeline, this.values]) part.show(state);
    for (const card of this.latencies) card.show(state, this.sinceStart);
    for (const chart of this.charts) {
      const raw = this.history.data(chart.columns(), this.seconds);
      const data = chart.stacked ? this.history.data(chart.columns(), this.seconds, true) : raw;
      chart.show(data, raw, this.seconds, state.timeMs / 1000);
    }
  }

  #restyle() {
    for (const part of [this.ring, this.timeline, ...this.charts, ...this.latencies]) part.restyle();
    this.#drawSoon();
  }
}
