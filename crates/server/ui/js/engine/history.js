// The samples of the last minutes, as columns for the charts.

const MAX_MS = 15 * 60_000;
/** A longer gap between samples is drawn as one. */
const GAP_MS = 2500;

const label = (state, name) => state.values[`izar:kv_blocks{state="${name}"}`] ?? null;
const ms = (seconds) => (seconds === null || seconds === undefined ? null : seconds * 1000);

/** Speeds are means over so many samples, about a second: within one, whole steps come and go. */
const SMOOTHED = 4;

/** Column name to what a sample has for it, given the last few samples' rates. */
const COLUMNS = {
  running: (state) => state.values["vllm:num_requests_running"] ?? null,
  waiting: (state) => state.values["vllm:num_requests_waiting"] ?? null,
  paused: (state) => state.values['izar:ring_slots_by_state{state="paused"}'] ?? null,
  owned: (state) => label(state, "owned"),
  cached: (state) => label(state, "cached"),
  free: (state) => label(state, "free"),
  output: (_, rates) => mean(rates, "tokens_per_second"),
  prompt: (_, rates) => mean(rates, "prompt_tokens_per_second"),
  itlP50: (state) => ms(state.now.itl?.p50),
  itlP99: (state) => ms(state.now.itl?.p99),
  hostCpu: (state) => (state.now.host_cpu === null || state.now.host_cpu === undefined ? null : state.now.host_cpu * 100),
};

/** A rate over all of `rates`, each of which held for its own `seconds`. */
function mean(rates, name) {
  const known = rates.filter((rate) => Number.isFinite(rate[name]));
  const seconds = known.reduce((sum, rate) => sum + rate.seconds, 0);
  return seconds > 0 ? known.reduce((sum, rate) => sum + rate[name] * rate.seconds, 0) / seconds : null;
}

export class History {
  time = [];
  #rates = [];
  columns = Object.fromEntries(Object.keys(COLUMNS).map((name) => [name, []]));

  /** Takes the state's sample. */
  push(state) {
    const last = this.time.at(-1) ?? null;
    const seconds = state.timeMs / 1000;
    // A restarted server's clock may be behind: charts want time to go on.
    if (last !== null && seconds <= last) return;
    if (last !== null && state.timeMs - last * 1000 > GAP_MS) {
      this.#add(last + 0.001, () => null);
      this.#rates = [];
    }
    this.#rates = [...this.#rates, state.now].slice(-SMOOTHED);
    this.#add(seconds, (column) => COLUMNS[column](state, this.#rates));
    while (this.time.length > 0 && state.timeMs - this.time[0] * 1000 > MAX_MS) this.#drop();
  }

  #add(seconds, value) {
    this.time.push(seconds);
    for (const name of Object.keys(COLUMNS)) this.columns[name].push(value(name));
  }

  #drop() {
    this.time.shift();
    for (const column of Object.values(this.columns)) column.shift();
  }

  /** `[time, ...columns]` of the last `seconds`, as uPlot takes them. Stacked: each column on top of those before it. */
  data(names, seconds, stacked = false) {
    const from = this.time.length === 0 ? 0 : this.time.findIndex((time) => time >= this.time.at(-1) - seconds);
    const columns = names.map((name) => this.columns[name].slice(from));
    if (stacked) {
      for (let index = 1; index < columns.length; index++) {
        columns[index] = columns[index].map((value, at) => (value === null ? null : value + (columns[index - 1][at] ?? 0)));
      }
    }
    return [this.time.slice(from), ...columns];
  }
}

/** A histogram's counts of the last minute: today's less those of a minute ago. */
export class RecentCounts {
  #past = [];

  push(timeMs, counts) {
    const last = this.#past.at(-1);
    // A new process counts from nothing.
    if (last && counts.some((count, index) => count < last.counts[index])) this.#past = [];
    if (!last || timeMs - last.timeMs >= 1000) this.#past.push({ timeMs, counts: [...counts] });
    while (this.#past.length > 1 && timeMs - this.#past[1].timeMs > 60_000) this.#past.shift();
  }

  of(counts) {
    const base = this.#past[0]?.counts;
    return base ? counts.map((count, index) => count - base[index]) : counts.map(() => 0);
  }
}
