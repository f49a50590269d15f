// Requests to this page's own server, and what can go wrong with them.

import { apiKey } from "./store.js";

/** Where the API is: beside the page, also behind a proxy that serves it under a path. */
export const BASE = new URL("./", document.baseURI);

/**
 * Why a request failed. `kind` is what the page does about it: `key` (ask for one), `busy` (429: later), `unavailable` (503: the server
 * loads, drains or has lost its engine), `network` (nobody answered, or the connection broke), `refused` (everything else).
 */
export class Failure extends Error {
  constructor(kind, message, { status = null, code = null, retryAfter = null } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

const kindOf = (status) => ({ 401: "key", 403: "key", 429: "busy", 503: "unavailable" })[status] ?? "refused";

/** The failure that a response tells of. */
async function failureOf(response) {
  let said = null;
  try {
    said = (await response.json()).error;
  } catch {
    // A proxy's error page: its status has to do.
  }
  const message = typeof said?.message === "string" ? said.message : `the server answered ${response.status}`;
  const retryAfter = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  return new Failure(kindOf(response.status), message, {
    status: response.status,
    code: said?.code ?? null,
    retryAfter: Number.isFinite(retryAfter) ? retryAfter : null,
  });
}

/** The failure that an error event in a stream tells of. */
export function failureInStream(error) {
  const message = typeof error?.message === "string" ? error.message : "the server broke the answer off";
  const code = error?.code ?? null;
  const gone = code === "shutting_down" || code === "engine_unavailable" || code === "engine_error";
  return new Failure(gone ? "unavailable" : "refused", message, { code });
}

/** Fetches `path`; a `body` is posted as JSON. Throws a `Failure`, or an `AbortError` where `signal` fired. */
export async function request(path, { body = null, signal = null } = {}) {
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method: body === null ? "GET" : "POST",
      headers,
      body: body === null ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("network", "the server cannot be reached");
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}
