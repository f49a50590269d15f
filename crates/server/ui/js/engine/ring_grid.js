// The ring's slots as a grid of cells, coloured by state. Only cells that change are drawn.

import { h } from "../dom.js";
import { color } from "./palette.js";

/** Cells a row; 4096 slots make a square. */
const COLUMNS = 64;
const CELL = 5;
const GAP = 1;
const PITCH = CELL + GAP;
const TELL_EVERY_MS = 2000;

/** The colour of a state; states that a newer server may add look pending. */
const colorOf = (state) => color(CSS.supports("color", `var(--c-${state})`) ? `--c-${state}` : "--c-pending");

export class RingGrid {
  #drawn = new Uint8Array(0);
  #colors = [];
  #names = "";
  #told = Number.NEGATIVE_INFINITY;

  constructor() {
    this.canvas = h("canvas.ring", { width: COLUMNS * PITCH, height: COLUMNS * PITCH, attrs: { role: "img", "aria-label": "The ring's slots" } });
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#unpoint());
    this.hint = h("p.hint.ring-hint", {}, "One cell a slot.");
    this.legend = h("ul.legend.states");
    this.root = h("section.card.ring-card", { attrs: { "aria-label": "Ring" } },
      h("div.card-head", {}, h("h2", { textContent: "Ring" }), this.total = h("span.hint")),
      h("div.ring-body", {}, this.canvas, h("div", {}, this.legend, this.hint)));
  }

  show(state) {
    const { slots, slotStates } = state;
    this.state = state;
    if (this.#names !== slotStates.join() || this.#drawn.length !== slots.length) this.#prepare(state);
    const context = this.canvas.getContext("2d");
    for (let slot = 0; slot < slots.length; slot++) {
      if (this.#drawn[slot] === slots[slot] + 1) continue;
      this.#drawn[slot] = slots[slot] + 1;
      context.fillStyle = this.#colors[slots[slot]];
      context.fillRect((slot % COLUMNS) * PITCH, Math.floor(slot / COLUMNS) * PITCH, CELL, CELL);
    }
    this.#tell(state.slotCounts());
  }

  #prepare({ slots, slotStates }) {
    this.#names = slotStates.join();
    this.#colors = slotStates.map(colorOf);
    this.#drawn = new Uint8Array(slots.length);
    const ratio = Math.max(1, Math.ceil(devicePixelRatio));
    const rows = Math.max(1, Math.ceil(slots.length / COLUMNS));
    this.canvas.width = COLUMNS * PITCH * ratio;
    this.canvas.height = rows * PITCH * ratio;
    this.canvas.getContext("2d").scale(ratio, ratio);
    this.counts = slotStates.map((name) => h("span.legend-value", { data: { slotState: name } }));
    this.legend.replaceChildren(...slotStates.map((name, index) =>
      h("li", {}, h(`span.swatch.c-${/^[a-z]+$/.test(name) ? name : "pending"}`, { attrs: { "aria-hidden": "true" } }), `${name} `, this.counts[index])));
    this.total.textContent = `${slots.length.toLocaleString("en")} slots`;
  }

  #tell(counts) {
    for (const [index, count] of counts.entries()) {
      const text = count.toLocaleString("en");
      if (this.counts[index].textContent !== text) this.counts[index].textContent = text;
    }
    // A label that changes many times a second would only make a screen reader stutter.
    if (performance.now() - this.#told < TELL_EVERY_MS) return;
    this.#told = performance.now();
    const said = this.state.slotStates.map((name, index) => `${counts[index]} ${name}`).join(", ");
    this.canvas.setAttribute("aria-label", `The ring's slots: ${said}`);
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * COLUMNS);
    const rows = Math.ceil((this.state?.slots.length ?? 0) / COLUMNS);
    const slot = Math.floor(((event.clientY - box.top) / box.height) * rows) * COLUMNS + column;
    const found = this.state?.slots[slot];
    if (found !== undefined) this.hint.textContent = `Slot ${slot}: ${this.state.slotStates[found]}`;
  }

  #unpoint() {
    this.hint.textContent = "One cell a slot.";
  }

  restyle() {
    this.#names = "";
  }
}
