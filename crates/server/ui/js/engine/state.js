// The engine's state after the events of `/izar/stats` so far (docs/stats.md). Fields carry the wire's names.

/** Steps that are kept; a snapshot brings no more. */
const MAX_STEPS = 512;

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
