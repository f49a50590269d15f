// The engine view against /metrics, which counts the same things.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { KEY, MODEL, eventually, waitForState, withPage } from "./support.mjs";

/** What goes on by itself in a server that nobody uses. */
const RESTLESS = /^process_|^izar:(engine_heartbeat_age|host_cpu|ring_polls|http_responses|stats_|step_log)/;

const tile = (page, name) => page.locator(`[data-tile="${name}"]`).getAttribute("data-value").then(Number);
const live = (page) => page.locator("#engine[data-link=live]").waitFor();

/** Streams that go on until `stop`. */
function load(server, count) {
  const stop = new AbortController();
  const body = { messages: [{ role: "user", content: "Count." }], max_tokens: 4000, ignore_eos: true, stream: true };
  const ended = Array.from({ length: count }, async () => {
    const response = await server.post("v1/chat/completions", body, stop.signal);
    assert.equal(response.status, 200);
    for await (const _ of response.body);
  });
  return { stop: () => stop.abort(), ended: Promise.allSettled(ended) };
}

/** Processor time of `pid`, seconds. */
function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

export function engineTests(server, mock, maxNumSeqs) {
  test("the engine view's counts are those of /metrics under load, and every value is when it has gone", () =>
    withPage(server, { view: "engine" }, async (page) => {
      await live(page);
      const streams = load(server, maxNumSeqs + 3);
      const wanted = { Running: maxNumSeqs, Waiting: 3, Paused: 0 };
      await eventually("the page shows the load", async () => (await tile(page, "Running")) === maxNumSeqs && (await tile(page, "Waiting")) === 3);
      const metrics = await server.metrics();
      assert.deepEqual({
        Running: metrics.get("vllm:num_requests_running"), Waiting: metrics.get("vllm:num_requests_waiting"), Paused: metrics.get('izar:ring_slots_by_state{state="paused"}'),
      }, wanted);
      await eventually("tokens are counted", async () => (await tile(page, "Output")) > 0);
      const busy = await page.locator("[data-slot-state]").evaluateAll((all) => Object.fromEntries(all.map((one) => [one.dataset.slotState, Number(one.textContent.replaceAll(",", ""))])));
      assert.equal(Object.values(busy).reduce((sum, count) => sum + count, 0), metrics.get("izar:ring_slots"));
      assert.equal(busy.prefill + busy.decode + busy.pending, maxNumSeqs + 3);
      await page.getByText(/^Step [\d,]+: \d+ tokens of \d+ sequences; plan/).waitFor();
      await eventually("latencies are measured", async () => /\d/.test(await page.locator('[data-latency="itl.p50"]').textContent()));
      streams.stop();
      await streams.ended;
      await page.getByText("All values, as /metrics has them").click();
      await eventually("the load has gone", async () => (await tile(page, "Running")) === 0 && (await tile(page, "Waiting")) === 0);
      await eventually("every value is the metric's", async () => (await differences(page, server)).length === 0, 20).catch(async () =>
        assert.deepEqual(await differences(page, server), []));
    }));

  test("the engine view says what is served, whatever it is called", () =>
    withPage(server, { view: "engine" }, async (page) => {
      await live(page);
      assert.equal(await page.locator('[data-fact="Model"]').textContent(), MODEL);
      assert.match(await page.locator('[data-fact="Loaded from"]').textContent(), /<svg onload=window\.pwned=1>/);
      assert.equal(await page.locator('[data-fact="Placement"]').textContent(), "host-sync");
      assert.equal(await page.locator(".health").textContent(), "ready");
      assert.match(await page.getByRole("img", { name: /^The ring's slots/ }).getAttribute("aria-label"), /4096 empty/);
    }));

  test("a hidden tab stops reading, and reads again when it is seen", () =>
    withPage(server, { view: "engine" }, async (page) => {
      await live(page);
      const asked = [];
      page.on("request", (request) => asked.push(request.url()));
      const show = (hidden) => page.evaluate((value) => {
        Object.defineProperty(document, "hidden", { value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, hidden);
      const watchers = async () => (await server.metrics()).get("izar:stats_watchers") ?? null;
      await show(true);
      await page.locator("#engine[data-link=off]").waitFor();
      if ((await watchers()) !== null) await eventually("the server has no watcher", async () => (await watchers()) === 0);
      await page.waitForTimeout(1500);
      assert.deepEqual(asked, []);
      await show(false);
      await live(page);
      await page.getByRole("link", { name: "Chat", exact: true }).click();
      await page.locator("#engine[data-link=off]").waitFor({ state: "attached" });
    }));

  test("the engine view needs the key and says so", () =>
    withPage(server, { key: null, view: "engine", expected: /status of 401/ }, async (page) => {
      await page.locator("#engine[data-link=key]").waitFor();
      await page.locator("#engine").getByRole("button", { name: "Enter a key" }).click();
      await page.getByLabel("Key", { exact: true }).fill(KEY);
      await page.keyboard.press("Enter");
      await live(page);
    }));

  test("a server without work and with the page open takes under 1 % of a core", () =>
    withPage(mock, { key: null, view: "engine" }, async (page) => {
      await live(page);
      await waitForState(page, "ready");
      await page.waitForTimeout(500);
      const [before, start] = [cpuSeconds(mock.pid), performance.now()];
      await page.waitForTimeout(8000);
      const share = (cpuSeconds(mock.pid) - before) / ((performance.now() - start) / 1000);
      console.error(`  with the page open the idle server took ${(share * 100).toFixed(2)} % of a core`);
      assert.ok(share < 0.01, `${(share * 100).toFixed(2)} %`);
    }));
}

/** Values that the page shows and /metrics contradicts, or the other way round. */
async function differences(page, server) {
  const shown = new Map(await page.locator("[data-value][data-value]:is(td)").evaluateAll((cells) => cells.map((cell) => [cell.dataset.value, Number(cell.textContent)])));
  const metrics = await server.metrics();
  const isHistogram = (name) => /_(bucket|sum|count)(\{|$)/.test(name);
  const names = new Set([...shown.keys(), ...[...metrics.keys()].filter((name) => !isHistogram(name))]);
  return [...names].filter((name) => !RESTLESS.test(name) && shown.get(name) !== metrics.get(name)).map((name) => [name, shown.get(name), metrics.get(name)]);
}
