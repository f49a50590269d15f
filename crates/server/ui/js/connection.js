// Whether the server is there: asks /health now and then while the page is seen, more patiently the longer nobody answers.

import { Failure, request } from "./api.js";

const CALM_MS = 10_000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 10_000;

const TEXT = {
  connecting: "Connecting",
  ready: "Ready",
  loading: "Loading the model",
  draining: "Draining",
  failed: "Engine failed",
  key: "Needs a key",
  unreachable: "Reconnecting",
};

/** How long to wait before attempt `n` (from 0) at somebody who does not answer: doubling, with half of it left to chance. */
export function backoff(n) {
  const full = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** n);
  return full * (0.5 + Math.random() / 2);
}

/** Fires `change` when `state` or `model` changes. `model` is the entry of /v1/models, or null. */
export class Connection extends EventTarget {
  state = "connecting";
  model = null;
  #misses = 0;
  #timer = null;
  #checking = null;

  start() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.#timer);
      else this.check();
    });
    addEventListener("online", () => this.check());
    return this.check();
  }

  get text() {
    return TEXT[this.state];
  }

  /** Looks now, for instance because a request has just failed. */
  check() {
    this.#checking ??= this.#look().finally(() => {
      this.#checking = null;
    });
    return this.#checking;
  }

  async #look() {
    clearTimeout(this.#timer);
    const state = await this.#ask();
    this.#misses = state === "ready" || state === "key" ? 0 : this.#misses + 1;
    const changed = state !== this.state;
    this.state = state;
    if (changed) this.dispatchEvent(new Event("change"));
    if (!document.hidden) {
      this.#timer = setTimeout(() => this.check(), this.#misses === 0 ? CALM_MS : backoff(this.#misses - 1));
    }
  }

  async #ask() {
    try {
      await request("health", { signal: AbortSignal.timeout(5000) });
      // The list of models needs the key, and a new process may serve another model.
      if (this.state !== "ready" || this.model === null) await this.#learn();
      return "ready";
    } catch (error) {
      if (!(error instanceof Failure)) return "unreachable";
      if (error.kind === "key") return "key";
      if (error.kind !== "unavailable") return "unreachable";
      if (error.code === "shutting_down") return "draining";
      return /fail|stop|no sign/i.test(error.message) ? "failed" : "loading";
    }
  }

  async #learn() {
    const list = await (await request("v1/models", { signal: AbortSignal.timeout(5000) })).json();
    const model = list.data?.[0] ?? null;
    const known = this.model?.id === model?.id;
    this.model = model;
    if (!known) this.dispatchEvent(new Event("change"));
  }

  /** Forgets what the old key opened, and looks again. */
  async keyChanged() {
    this.model = null;
    this.state = "connecting";
    await this.#checking;
    return this.check();
  }
}
