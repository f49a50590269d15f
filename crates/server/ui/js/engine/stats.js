// What `/izar/stats` says (docs/stats.md), read for as long as somebody looks. Between the events it holds the engine's latest state.

import { Failure, failureInStream, request } from "../api.js";
import { backoff } from "../connection.js";
import { events } from "../sse.js";

/** Steps that are kept; a snapshot brings no more. */
const MAX_STEPS = 512;
/** The server says something several times a second: a stream that is silent for so long is dead. */
const SILENCE_MS = 5000;

/** The state after the events so far. Fields carry the wire's names. */
export class EngineState {
  server = {};
  engine = {};
  health = "starting";
  timeMs = 0;
  values = {};
  histograms = {};
  now = {};
  window = {};
  slotStates = [];
  slots = new Uint8Array(0);
  steps = [];
  #fields = [];

  snapshot(data) {
    this.server = data.server ?? {};
    this.engine = data.engine ?? {};
    this.health = data.health;
    this.timeMs = data.time_ms;
    this.values = data.values ?? {};
    this.histograms = data.histograms ?? {};
    this.now = data.now ?? {};
    this.window = data.window ?? {};
    this.slotStates = data.slot_states ?? [];
    this.slots = new Uint8Array(data.num_slots ?? 0);
    this.#fields = data.step_fields ?? [];
    this.steps = [];
    this.#takeSlots(data.slots);
    this.#takeSteps(data.steps);
  }

  delta(data) {
    this.timeMs = data.time_ms;
    this.health = data.health ?? this.health;
    Object.assign(this.values, data.values);
    for (const [name, change] of Object.entries(data.histograms ?? {})) {
      const histogram = this.histograms[name];
      if (histogram === undefined) continue;
      for (const [bucket, count] of Object.entries(change.counts ?? {})) histogram.counts[bucket] = count;
      histogram.sum = change.sum ?? histogram.sum;
    }
    this.now = data.now ?? this.now;
    this.window = data.window ?? this.window;
    this.#takeSlots(data.slots);
    this.#takeSteps(data.steps);
  }

  /** Runs of `first, count, state`. */
  #takeSlots(runs = []) {
    for (let at = 0; at + 2 < runs.length; at += 3) this.slots.fill(runs[at + 2], runs[at], runs[at] + runs[at + 1]);
  }

  #takeSteps(rows = []) {
    for (const row of rows) this.steps.push(Object.fromEntries(this.#fields.map((field, index) => [field, row[index]])));
    if (this.steps.length > MAX_STEPS) this.steps.splice(0, this.steps.length - MAX_STEPS);
  }

  /** How many slots are in each state, in the order of `slotStates`. */
  slotCounts() {
    const counts = new Array(this.slotStates.length).fill(0);
    for (const state of this.slots) counts[state]++;
    return counts;
  }
}

/**
 * Reads the stream and comes back after every break, more patiently the longer nothing answers. Fires `snapshot` and `sample` (after every event
 * of the engine's), and `link` when `link` changes: `off`, `connecting`, `live`, `lost` or `key`.
 */
export class Stats extends EventTarget {
  state = new EngineState();
  link = "off";
  problem = "";
  #abort = null;
  #misses = 0;

  get reading() {
    return this.#abort !== null;
  }

  start() {
    if (this.#abort !== null) return;
    this.#abort = new AbortController();
    this.#misses = 0;
    this.#run(this.#abort.signal);
  }

  stop() {
    this.#abort?.abort();
    this.#abort = null;
    this.#setLink("off");
  }

  #setLink(link, problem = "") {
    this.link = link;
    this.problem = problem;
    this.dispatchEvent(new Event("link"));
  }

  async #run(signal) {
    while (!signal.aborted) {
      if (this.#misses === 0) this.#setLink("connecting");
      let failure = null;
      try {
        await this.#read(signal);
      } catch (error) {
        failure = error;
      }
      if (signal.aborted) return;
      const isKey = failure instanceof Failure && failure.kind === "key";
      this.#setLink(isKey ? "key" : "lost", failure instanceof Failure ? failure.message : "the connection broke");
      await pause(isKey ? 60_000 : Math.max(backoff(this.#misses++), 1000 * (failure?.retryAfter ?? 0)), signal);
    }
  }

  async #read(signal) {
    const silence = new AbortController();
    let timer = null;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
    };
    heard();
    try {
      const response = await request("izar/stats", { signal: AbortSignal.any([signal, silence.signal]) });
      for await (const { event, data } of events(response.body)) {
        heard();
        this.#take(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #take(event, data) {
    if (event === "snapshot") {
      this.#misses = 0;
      this.state.snapshot(data);
      this.#setLink("live");
      this.dispatchEvent(new Event("snapshot"));
    } else if (event === "delta") {
      this.state.delta(data);
    } else if (event === "end") {
      throw failureInStream({ code: "shutting_down", message: `the server has ended the stream: ${data.reason}` });
    } else {
      return;
    }
    this.dispatchEvent(new Event("sample"));
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
