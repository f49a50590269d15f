// The latest steps along one time axis: what the scheduler did above, what the executor did below. Under `host-async` the two overlap;
// under `host-sync` they take turns, and the executor's gaps are the scheduler's work.

import { h, textButton } from "../dom.js";
import { duration } from "./format.js";
import { color } from "./palette.js";

const HEIGHT = 116;
const LANES = [{ name: "Scheduler", y: 14 }, { name: "Executor", y: 54 }];
const LANE_HEIGHT = 30;
const LEFT = 74;
const STEPS_SHOWN = 12;

/** Name, lane, colour, start and length of each part of a step, µs. */
function partsOf(step) {
  const end = step.start_us + step.forward_us;
  return [
    ["plan", 0, "--c-plan", step.plan_start_us, step.plan_us],
    ["launch", 0, "--c-prefill", step.plan_start_us + step.plan_us, step.launch_us],
    ["publish", 0, "--c-cached", step.publish_start_us, step.publish_us],
    ["gap", 1, "--c-gap", step.start_us - step.gap_us, step.gap_us],
    ["forward", 1, "--c-decode", step.start_us, step.forward_us],
    ["sample", 1, "--c-sample", end, step.sample_us],
  ];
}

const endOf = (step) => Math.max(step.start_us + step.forward_us + step.sample_us, (step.publish_start_us ?? 0) + (step.publish_us ?? 0));
const beginOf = (step) => Math.min(step.start_us - step.gap_us, step.plan_start_us || step.start_us);
const PARTS = [["plan", "--c-plan"], ["launch", "--c-prefill"], ["forward", "--c-decode"], ["sample", "--c-sample"], ["publish", "--c-cached"], ["gap", "--c-gap"]];

export class StepTimeline {
  #steps = [];
  #frozen = false;

  constructor() {
    this.canvas = h("canvas.timeline", { attrs: { role: "img" } });
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#pick(null));
    this.freeze = textButton("Freeze", () => this.#toggle());
    this.freeze.setAttribute("aria-pressed", "false");
    this.means = PARTS.map(() => h("span.legend-value"));
    const legend = h("ul.legend", { title: "Means of the steps kept" }, ...PARTS.map(([name, token], index) =>
      h("li", {}, h(`span.swatch.${token.slice(2)}`, { attrs: { "aria-hidden": "true" } }), `${name} `, this.means[index])));
    this.detail = h("p.hint.step-detail");
    this.root = h("section.card.steps", { attrs: { "aria-label": "Steps" } },
      h("div.card-head", {}, h("h2", { textContent: "Steps" }), this.freeze, legend), this.canvas, this.detail);
    new ResizeObserver(() => this.#draw()).observe(this.canvas);
  }

  #toggle() {
    this.#frozen = !this.#frozen;
    this.freeze.textContent = this.#frozen ? "Go on" : "Freeze";
    this.freeze.setAttribute("aria-pressed", String(this.#frozen));
  }

  show(state) {
    if (this.#frozen) return;
    const last = state.steps.at(-1);
    if (last && last === this.last) return;
    this.last = last;
    this.#steps = state.steps.slice(-STEPS_SHOWN);
    this.#draw();
    this.#pick(null);
    this.#tellMeans(state.steps);
  }

  #tellMeans(steps) {
    for (const [index, [name]] of PARTS.entries()) {
      const sum = steps.reduce((total, step) => total + step[`${name}_us`], 0);
      this.means[index].textContent = steps.length > 0 ? duration(sum / steps.length / 1e6) : "–";
    }
  }

  /** Time to pixels. An idle stretch between steps is cut out: it would push everything else together. */
  #scale(width) {
    let at = 0;
    const spans = this.#steps.map((step, index) => {
      const before = this.#steps[index - 1];
      const begin = before ? Math.max(beginOf(step), 0) : beginOf(step);
      const idle = before ? begin - endOf(before) : 0;
      const length = endOf(step) - begin;
      // Idle for longer than two steps: shown as a break of fixed width.
      if (before && idle > 2 * length) at += idle - length * 0.3;
      return at;
    });
    const first = this.#steps.length > 0 ? beginOf(this.#steps[0]) : 0;
    const total = this.#steps.length > 0 ? endOf(this.#steps.at(-1)) - first - (spans.at(-1) ?? 0) : 1;
    const scale = (width - LEFT - 12) / Math.max(1, total);
    return { x: (index, us) => LEFT + (us - first - spans[index]) * scale, scale, total };
  }

  #draw() {
    const width = this.canvas.clientWidth;
    if (width === 0) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(HEIGHT * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    this.#drawLanes(context, width);
    const scale = this.#scale(width);
    this.hits = [];
    for (const [index, step] of this.#steps.entries()) {
      for (const [, lane, token, start, length] of partsOf(step)) {
        if (length <= 0 || !start) continue;
        const x = scale.x(index, start);
        context.fillStyle = color(token);
        context.fillRect(x, LANES[lane].y, Math.max(1, length * scale.scale - 0.5), LANE_HEIGHT);
      }
      this.hits.push([scale.x(index, beginOf(step)), step]);
    }
    this.#drawTicks(context, width, scale);
  }

  #drawLanes(context, width) {
    for (const { name, y } of LANES) {
      context.fillStyle = color("--muted");
      context.fillText(name, 4, y + LANE_HEIGHT / 2 + 4);
      context.fillStyle = color("--raised");
      context.fillRect(LEFT, y, width - LEFT - 12, LANE_HEIGHT);
    }
  }

  #drawTicks(context, width, { total, scale }) {
    if (this.#steps.length === 0) return;
    const rough = total / 6;
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
    context.fillStyle = color("--muted");
    context.textAlign = "center";
    for (let us = 0; LEFT + us * scale < width - 30; us += every) context.fillText(us === 0 ? "0" : duration(us / 1e6), LEFT + us * scale, HEIGHT - 10);
    context.textAlign = "left";
  }

  #point(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    this.#pick((this.hits ?? []).findLast(([from]) => from <= x)?.[1] ?? null);
  }

  #pick(picked) {
    const step = picked ?? this.#steps.at(-1);
    if (step === undefined) {
      this.detail.textContent = "No step yet: send a request.";
      return;
    }
    const parts = PARTS.map(([name]) => `${name} ${duration(step[`${name}_us`] / 1e6)}`).join(", ");
    this.detail.textContent = `Step ${step.step.toLocaleString("en")}: ${step.tokens} tokens of ${step.sequences} sequences; ${parts}`;
    this.canvas.setAttribute("aria-label", `The latest ${this.#steps.length} steps. ${this.detail.textContent}`);
  }

  restyle() {
    this.#draw();
  }
}
