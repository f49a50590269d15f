// What the tests share: servers, a browser, and pages that remember everything that went wrong in them.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

export const KEY = "test-key-<b>'\"";
/** Names are hostile in every test: a page that let one become HTML would fail all of them. */
export const MODEL = `<img src=x onerror="window.pwned=1">'"&amp;\u202e smol`;
const FILE = `<svg onload=window.pwned=1>'"&.gguf`;

const LAUNCH = {
  executablePath: process.env.IZAR_CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
  ],
};

const folder = mkdtempSync(join(tmpdir(), "izar-ui-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));

/** The model under a name that is hostile itself. */
export function hostileFile(model) {
  const path = join(folder, FILE);
  symlinkSync(resolve(model), path);
  return path;
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Resolves once `check` gives something true, which it resolves to. */
export async function eventually(what, check, seconds = 60) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await sleep(100)) {
    const found = await check();
    if (found) return found;
  }
  assert.fail(`not within ${seconds} s: ${what}`);
}

/** A server process. `start` may be called again after `stop`, and keeps the port. */
export class Server {
  #process = null;
  port = 0;

  constructor(command, flags, folder = undefined) {
    Object.assign(this, { command: resolve(command), flags, folder });
  }

  get url() {
    return `http://127.0.0.1:${this.port}/`;
  }

  get pid() {
    return this.#process.pid;
  }

  /** Spawns the process; resolves once it serves. */
  async start() {
    this.launch();
    await this.healthy();
  }

  launch() {
    const child = spawn(this.command, this.flags(this.port), { stdio: ["ignore", "inherit", "pipe"], cwd: this.folder });
    this.#process = child;
    this.lines = [];
    createInterface({ input: child.stderr }).on("line", (line) => {
      this.lines.push(line);
      const found = line.match(/http:\/\/127\.0\.0\.1:(\d+)\/v1/);
      if (found) this.port = Number(found[1]);
    });
  }

  async healthy() {
    const told = await eventually("the server is healthy", async () => {
      if (this.#process.exitCode !== null) return "ended";
      return this.port > 0 && (await fetch(`${this.url}health`).catch(() => null))?.ok;
    }, 180);
    assert.notEqual(told, "ended", this.lines.join("\n"));
  }

  /** Asks it to end; resolves once it has. */
  async stop(signal = "SIGTERM") {
    const child = this.#process;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((done) => child.once("exit", done));
    child.kill(signal);
    const late = setTimeout(() => child.kill("SIGKILL"), 40_000);
    await ended;
    clearTimeout(late);
  }

  post(path, body, signal) {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${KEY}` };
    return fetch(this.url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  /** The samples of /metrics by name, with the labels that tell them apart. */
  async metrics() {
    const page = await (await fetch(`${this.url}metrics`)).text();
    const lines = page.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
    return new Map(lines.map((line) => {
      const [, name, labels, value] = line.match(/^([^{ ]+)(?:\{(.*)\})? (\S+)$/);
      const own = (labels?.match(/[a-z_]+="(?:[^"\\]|\\.)*"/g) ?? []).filter((label) => !/^(model_name|engine)=/.test(label));
      return [own.length > 0 ? `${name}{${own.join(",")}}` : name, Number(value)];
    }));
  }
}

let browser = null;

async function launched() {
  browser ??= await chromium.launch(LAUNCH);
  return browser;
}

export async function closeBrowser() {
  await browser?.close();
}

/** Runs in the page before its own scripts. */
function watch({ key, settings }) {
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
  if (key !== null) sessionStorage.setItem("izar.key", key);
  for (const [name, value] of Object.entries(settings)) {
    if (localStorage.getItem(name) === null) localStorage.setItem(name, value);
  }
}

/** The page's files from a folder instead of the binary, under the server's own headers: to work on them without building. */
async function serveFrom(directory, server, page) {
  const isFile = (url) => url.href.startsWith(server.url) && (url.pathname === "/" || url.pathname.startsWith("/ui/"));
  await page.route(isFile, async (route) => {
    const { pathname } = new URL(route.request().url());
    const path = pathname === "/" ? "index.html" : pathname.slice("/ui/".length);
    const { headers } = await fetch(server.url + pathname.slice(1)).catch(() => ({ headers: new Map() }));
    await route.fulfill({ headers: { "content-security-policy": headers.get("content-security-policy") ?? "" }, path: join(directory, path) });
  });
}

/** Greedy and short, so that answers are the same everywhere. */
export const GREEDY = { "izar.sampling": JSON.stringify({ temperature: "0", max_tokens: "40" }) };

/**
 * Opens the page of `server` in a browser profile of its own and gives it to `test`. Afterwards nothing may have gone wrong: no error in the console
 * but those that `expected` (a regular expression) names, no violation of the policy, no request to anywhere else, no dialog, no script of a model's.
 */
export async function withPage(server, { key = KEY, settings = GREEDY, expected = null, view = "chat", context = {}, prepare = null }, test) {
  const profile = await (await launched()).newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...context });
  await profile.addInitScript(watch, { key, settings });
  const page = await profile.newPage();
  page.setDefaultTimeout(30_000);
  const wrong = [];
  const complain = (text) => {
    if (!expected?.test(text)) wrong.push(text);
  };
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complain(`console: ${message.text()}`));
  page.on("pageerror", (error) => complain(`exception: ${error.stack}`));
  page.on("dialog", (dialog) => {
    complain(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => !request.url().startsWith(server.url) && complain(`request elsewhere: ${request.url()}`));
  page.on("popup", (popup) => complain(`window: ${popup.url()}`));
  try {
    if (process.env.IZAR_UI_DIR) await serveFrom(process.env.IZAR_UI_DIR, server, page);
    if (prepare) await prepare(page);
    await page.goto(`${server.url}#/${view}`);
    await test(page, profile);
    assert.deepEqual(await page.evaluate(() => window.violations), [], "violations of the policy");
    assert.equal(await page.evaluate(() => window.pwned), undefined, "somebody's script has run");
    assert.deepEqual(wrong, []);
  } finally {
    await profile.close();
  }
}

// The chat, as a person sees it.

export const question = (page) => page.getByLabel("Your message");
export const answers = (page) => page.getByRole("article", { name: "Answer" });
export const status = (page) => page.locator("#status");

export async function waitForState(page, state) {
  await page.locator(`#status[data-state="${state}"]`).waitFor({ state: "attached" });
}

/** The last answer, once it is whole. */
export async function answered(page, count) {
  await page.locator(".message.assistant[aria-busy=false]").nth(count - 1).waitFor();
  return answers(page).nth(count - 1);
}

export async function ask(page, text) {
  const before = await answers(page).count();
  await question(page).fill(text);
  await page.locator(".composer").getByRole("button", { name: "Send" }).click();
  await answers(page).nth(before).waitFor();
  return before + 1;
}

// Answers that a test makes up.

/** A stream of chat chunks as the server writes it, one for each of `deltas`. */
export function stream(deltas, { finish = "stop", tail = "data: [DONE]\n\n" } = {}) {
  const chunk = (choices, usage) => `data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", created: 1, model: MODEL, choices, usage })}\n\n`;
  const usage = (tokens) => ({ prompt_tokens: 9, completion_tokens: tokens, total_tokens: 9 + tokens });
  const pieces = deltas.map((delta, index) => chunk([{ index: 0, delta, finish_reason: null }], usage(index + 1)));
  return [...pieces, chunk([{ index: 0, delta: {}, finish_reason: finish }], usage(deltas.length)), tail].join("");
}

/** Answers the page's chat requests with `replies`, in order; each is a body or what `route.fulfill` takes. Returns the requests' bodies. */
export async function scripted(page, replies) {
  const requests = [];
  await page.route("**/v1/chat/completions", (route) => {
    const reply = replies[Math.min(requests.length, replies.length - 1)];
    requests.push(route.request().postDataJSON());
    return route.fulfill(typeof reply === "string" ? { status: 200, contentType: "text/event-stream", body: reply } : reply);
  });
  return requests;
}

export const refusal = (status, code, message, headers = {}) => ({
  status, headers, contentType: "application/json", body: JSON.stringify({ error: { message, type: "server_error", param: null, code } }),
});
