// Takes the pictures in docs/images.
//
//     node screenshots.mjs IZAR MODEL [FOLDER]
//
// IZAR should be a release build: the pictures show its speed. IZAR_UI_DIR works as with run.mjs.

import { mkdirSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { Server, answered, ask, closeBrowser, eventually, waitForState, withPage } from "./support.mjs";

const [izar, model, folder = "docs/images"] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

const flags = (port) => ["serve", basename(model), "--port", String(port), "--served-model-name", "SmolLM2-135M-Instruct", "--max-num-seqs", "16", "--seed", "7"];
const server = new Server(izar, flags, dirname(resolve(model)));

const DESK = { viewport: { width: 1280, height: 760 } };
const PHONE = { viewport: { width: 390, height: 760 }, isMobile: true, hasTouch: true };
const SAMPLING = { "izar.sampling": JSON.stringify({ temperature: "0", max_tokens: "160" }) };

const shot = (page, name) => page.screenshot({ path: join(folder, `${name}.png`) });

/** Keeps the engine busy: requests of all lengths come and go until `stop`. */
function load(count) {
  const abort = new AbortController();
  const one = async (index) => {
    for (let turn = 0; !abort.signal.aborted; turn++) {
      const content = `Story number ${index}.${turn}. ${"Tell me more about it. ".repeat((index * 7 + turn * 3) % 24)}`;
      const body = { messages: [{ role: "user", content }], max_tokens: 40 + ((index * 37 + turn * 11) % 120), ignore_eos: true, stream: true };
      const response = await server.post("v1/chat/completions", body, abort.signal);
      for await (const _ of response.body);
    }
  };
  const all = Promise.allSettled(Array.from({ length: count }, (_, index) => one(index)));
  return { stop: () => (abort.abort(), all) };
}

/** A short conversation. */
async function chat(name, context) {
  await withPage(server, { key: null, settings: SAMPLING, context }, async (page) => {
    await waitForState(page, "ready");
    await answered(page, await ask(page, "Name the capital of France."));
    await answered(page, await ask(page, "Write a Python function that adds two numbers, and show how to call it."));
    await shot(page, name);
  });
}

async function probabilities(name, context) {
  const settings = { ...SAMPLING, "izar.scores": "true" };
  await withPage(server, { key: null, settings, context }, async (page) => {
    await waitForState(page, "ready");
    const answer = await answered(page, await ask(page, "Write two sentences about the stars in the sky."));
    await answer.locator(".token").nth(5).click();
    await shot(page, name);
  });
}

async function engine(name, context, seconds) {
  await withPage(server, { key: null, view: "engine", context }, async (page) => {
    await page.locator("#engine[data-link=live]").waitFor();
    await page.waitForTimeout(seconds * 1000);
    await eventually("steps are shown", () => page.getByText(/^Step [\d,]+:/).count());
    await shot(page, name);
  });
}

await server.start();
try {
  await chat("chat-light", { ...DESK, colorScheme: "light" });
  await chat("chat-phone", { ...PHONE, colorScheme: "light" });
  await probabilities("chat-dark", { ...DESK, colorScheme: "dark" });
  const busy = load(20);
  await engine("engine-light", { ...DESK, viewport: { width: 1280, height: 1330 }, colorScheme: "light" }, 62);
  await engine("engine-dark", { ...DESK, colorScheme: "dark" }, 45);
  await engine("engine-phone", { ...PHONE, colorScheme: "dark" }, 10);
  await busy.stop();
} finally {
  await closeBrowser();
  await server.stop();
}
