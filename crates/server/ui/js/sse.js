// Server-sent events out of a fetched body. `EventSource` can neither POST nor send an Authorization header.

/** Cuts text that comes in pieces into events `{event, data}`, as the HTML standard says. */
export class EventParser {
  #rest = "";
  #event = "";
  #data = [];

  /** The events that `text` completes. */
  push(text) {
    const events = [];
    // A carriage return at the very end may be half of a line end: it waits for what follows.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?=[^])/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length > 0) events.push({ event: this.#event || "message", data: this.#data.join("\n") });
        this.#event = "";
        this.#data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "data") this.#data.push(value);
      else if (field === "event") this.#event = value;
    }
    return events;
  }
}

/** The events of a response's body, as they come. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    // Whoever stops reading also stops the server.
    reader.cancel().catch(() => {});
  }
}
