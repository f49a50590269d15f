// What is served and how, and the numbers that say how it is going.

import { h } from "../dom.js";
import { age, count, percent, rate } from "./format.js";

const value = (name) => (state) => state.values[name];
const owned = value('izar:kv_blocks{state="owned"}');

function processors(state) {
  const used = state.window.process_cpus;
  return Number.isFinite(used) ? `Izar: ${rate(used)} cores` : "all cores";
}

/** Name, number of a state, how to write it, smaller text below it. `data-value` of the number is the bare one. */
const TILES = [
  ["Running", value("vllm:num_requests_running"), count, (state) => `of ${count(state.engine.max_num_seqs)} sequences`],
  ["Waiting", value("vllm:num_requests_waiting"), count, () => "sequences"],
  ["Paused", value('izar:ring_slots_by_state{state="paused"}'), count, () => "sequences"],
  ["Output", (state) => state.window.tokens_per_second, rate, () => "tokens/s"],
  ["Prompts", (state) => state.window.prompt_tokens_per_second, rate, () => "tokens/s"],
  ["Requests", (state) => state.window.requests_per_second, rate, () => "a second"],
  ["KV in use", value("vllm:kv_cache_usage_perc"), percent, (state) => `${count(owned(state))} of ${count(state.engine.num_kv_blocks)}`],
  ["Host CPU", (state) => state.window.host_cpu, percent, processors],
];

export class Tiles {
  constructor() {
    this.tiles = TILES.map(([name, read, format, aside]) => {
      const number = h("span.tile-number", { data: { tile: name } });
      const note = h("span.tile-note");
      return { read, aside, format, number, note, root: h("div.tile", {}, h("dt", { textContent: name }), h("dd", {}, number, note)) };
    });
    this.root = h("dl.tiles", { attrs: { "aria-label": "Now" } }, ...this.tiles.map((tile) => tile.root));
  }

  show(state) {
    for (const { read, aside, format, number, note } of this.tiles) {
      const bare = read(state);
      const [text, beside] = [format(bare ?? Number.NaN), aside(state)];
      if (number.textContent !== text) number.textContent = text;
      if (note.textContent !== beside) note.textContent = beside;
      number.dataset.value = String(bare ?? "");
    }
  }
}

/** Name and text. Names of models and files are whatever somebody called them: they are text, and kept apart from what is around them. */
const FACTS = [
  ["Model", (state) => state.server.model],
  ["Placement", (state) => state.engine.placement],
  ["Hardware", (state) => state.engine.hardware],
  ["Context", (state) => `${count(state.engine.max_model_len)} tokens`],
  ["KV pool", (state) => `${count(state.engine.num_kv_blocks)} blocks of ${count(state.engine.block_size)}`],
  ["Step", (state) => `up to ${count(state.engine.max_num_batched_tokens)} tokens`],
  ["Loaded from", (state) => state.server.root],
  ["Version", (state) => state.server.version],
];

export class Facts {
  constructor() {
    this.health = h("span.health");
    this.uptime = h("bdi");
    this.items = FACTS.map(([name, read]) => {
      const text = h("bdi", { data: { fact: name } });
      return { read, text, root: h("div", {}, h("dt", { textContent: name }), h("dd", {}, text)) };
    });
    this.root = h("dl.facts", { attrs: { "aria-label": "What is served" } },
      h("div", {}, h("dt", { textContent: "Engine" }), h("dd", {}, this.health)), ...this.items.map((item) => item.root),
      h("div", {}, h("dt", { textContent: "Up for" }), h("dd", {}, this.uptime)));
  }

  show(state) {
    for (const { read, text } of this.items) {
      const now = read(state) ?? "–";
      if (text.textContent !== now) Object.assign(text, { textContent: now, title: now });
    }
    this.health.textContent = state.health;
    this.health.dataset.health = state.health;
    this.uptime.textContent = age(state.timeMs / 1000 - state.values.process_start_time_seconds);
  }
}
