// Reads `/izar/stats` for as long as somebody looks.

import { Failure, failureInStream, request } from "../api.js";
import { backoff } from "../connection.js";
import { events } from "../sse.js";
import { EngineState } from "./state.js";

/** The server says something several times a second: a stream that is silent for so long is dead. */
const SILENCE_MS = 5000;

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
