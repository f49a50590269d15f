// The page's modules that need no browser.

import assert from "node:assert/strict";
import { test } from "node:test";

const UI = new URL("../../crates/server/ui/js/", import.meta.url);
const [{ EventParser }, { samplingOf, firstProblem }, { EngineState }, { History, RecentCounts }, { age, duration, rate }] = await Promise.all(
  ["sse.js", "chat/sampling.js", "engine/state.js", "engine/history.js", "engine/format.js"].map((path) => import(new URL(path, UI))),
);

/** Numbers that look random and are the same every time. */
function* numbers(seed) {
  for (let state = seed; ; state = (state * 48271) % 2147483647) yield state;
}

const SNAPSHOT = {
  time_ms: 1000, health: "ready", values: { a: 1, b: 2 }, histograms: { h: { bounds: [1, 2], counts: [0, 1, 2], sum: 3 } }, now: {}, window: {},
  num_slots: 8, slot_states: ["empty", "pending", "prefill"], slots: [0, 3, 0, 3, 2, 2, 5, 3, 0], step_fields: ["step", "plan_us"], steps: [[1, 10]],
};

export function unitTests() {
  test("events are the same however the stream is cut", () => {
    const text = ": comment\n\ndata: a\ndata:b\n\nevent: x\r\ndata: {\"é\":1}\r\n\r\nid: 7\ndata:  two spaces\r\rdata\n\nevent: lost\n\ndata: last\n\ndata: unfinished";
    const whole = new EventParser().push(text);
    assert.deepEqual(whole, [
      { event: "message", data: "a\nb" }, { event: "x", data: '{"é":1}' }, { event: "message", data: " two spaces" }, { event: "message", data: "" },
      { event: "message", data: "last" },
    ]);
    const random = numbers(7);
    for (let round = 0; round < 500; round++) {
      const parser = new EventParser();
      const found = [];
      for (let at = 0; at < text.length;) {
        const length = 1 + (random.next().value % 9);
        found.push(...parser.push(text.slice(at, at + length)));
        at += length;
      }
      assert.deepEqual(found, whole);
    }
  });

  test("empty settings are left out of a request and wrong ones are found", () => {
    assert.deepEqual(samplingOf({ temperature: " ", stop: "\n" }), {});
    assert.deepEqual(samplingOf({ top_k: "-1", min_p: "0.05", stop: "a\n\nb" }), { top_k: -1, min_p: 0.05, stop: ["a", "b"] });
    assert.equal(firstProblem({ top_k: "1.5" }).problem, "Top k must be a whole number");
    assert.equal(firstProblem({ temperature: "warm" }).problem, "Temperature must be between 0 and 2");
    assert.equal(firstProblem({ temperature: "2", seed: "" }), null);
  });

  test("a snapshot and its deltas add up", () => {
    const state = new EngineState();
    state.snapshot(structuredClone(SNAPSHOT));
    assert.deepEqual(state.slotCounts(), [6, 0, 2]);
    state.delta({ time_ms: 1250, values: { b: 5 }, histograms: { h: { counts: { 1: 4 }, sum: 9 } }, slots: [4, 3, 1], steps: [[2, 20], [3, 30]] });
    assert.deepEqual(state.values, { a: 1, b: 5 });
    assert.deepEqual(state.histograms.h, { bounds: [1, 2], counts: [0, 4, 2], sum: 9 });
    assert.deepEqual(state.slotCounts(), [4, 3, 1]);
    assert.deepEqual(state.steps.map((step) => [step.step, step.plan_us]), [[1, 10], [2, 20], [3, 30]]);
    assert.equal(state.health, "ready");
    state.snapshot({ ...structuredClone(SNAPSHOT), values: {} });
    assert.deepEqual(state.values, {});
    assert.equal(state.steps.length, 1);
  });

  test("the history shows gaps, stacks, and forgets", () => {
    const history = new History();
    const sample = (seconds, owned, cached) => ({
      timeMs: seconds * 1000, now: {}, values: { 'izar:kv_blocks{state="owned"}': owned, 'izar:kv_blocks{state="cached"}': cached },
    });
    for (const [seconds, owned] of [[1, 10], [2, 20], [2, 99], [30, 30]]) history.push(sample(seconds, owned, 5));
    assert.deepEqual(history.data(["owned"], 60), [[1, 2, 2.001, 30], [10, 20, null, 30]]);
    assert.deepEqual(history.data(["owned", "cached"], 10, true), [[30], [30], [35]]);
    history.push(sample(2000, 1, 1));
    assert.equal(history.time[0], 2000);
  });

  test("speeds are means over a second", () => {
    const history = new History();
    const sample = (ms, speed, seconds) => ({ timeMs: ms, values: {}, now: { seconds, tokens_per_second: speed } });
    for (const [index, speed] of [100, 0, 0, 100, 200].entries()) history.push(sample(1000 + 250 * index, speed, 0.25));
    assert.deepEqual(history.columns.output, [100, 50, 100 / 3, 50, 75]);
    history.push(sample(60_000, 10, 0.25));
    assert.deepEqual(history.columns.output.slice(-2), [null, 10]);
  });

  test("a histogram of the last minute is a difference, and a restart begins it anew", () => {
    const recent = new RecentCounts();
    recent.push(0, [5, 0]);
    recent.push(1000, [7, 1]);
    assert.deepEqual(recent.of([7, 1]), [2, 1]);
    recent.push(61_500, [9, 1]);
    assert.deepEqual(recent.of([9, 1]), [2, 0]);
    recent.push(62_000, [1, 0]);
    assert.deepEqual(recent.of([1, 0]), [0, 0]);
  });

  test("numbers are written for people", () => {
    assert.deepEqual([0, 0.0000012, 0.0321, 2.5, Number.NaN].map(duration), ["0", "1.2 µs", "32.1 ms", "2.5 s", "–"]);
    assert.deepEqual([0, 3.14159, 99.94, 1234.5].map(rate), ["0", "3.14", "99.9", "1,235"]);
    assert.deepEqual([5, 65, 3700, 90_000].map(age), ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]);
  });
}
