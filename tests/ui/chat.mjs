// The chat with the real model.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { test } from "node:test";
import { GREEDY, KEY, MODEL, answered, answers, ask, eventually, question, waitForState, withPage } from "./support.mjs";

const CAPITAL = "Name the capital of France.";
const ENDLESS = { "izar.sampling": JSON.stringify({ temperature: "0", max_tokens: "4000", min_tokens: "4000" }) };

export function chatTests(server, python) {
  test("a question is answered, with its time to the first token and its speed", () =>
    withPage(server, {}, async (page) => {
      await waitForState(page, "ready");
      assert.equal(await page.locator("#model-name").textContent(), MODEL);
      const answer = await answered(page, await ask(page, CAPITAL));
      assert.match(await answer.locator(".answer-text").textContent(), /The capital of France is Paris\./);
      assert.match(await answer.locator(".stats").textContent(), /^TTFT [\d,.]+ ms · [\d,.]+ tokens\/s · 8 tokens · prompt \d+/);
      assert.equal(await page.locator(".chat-title").textContent(), CAPITAL);
    }));

  test("an answer is stopped midway, and what had come stays", () =>
    withPage(server, { settings: ENDLESS }, async (page) => {
      await ask(page, "Count to a thousand.");
      await page.getByText(/[3-9] tokens/).first().waitFor();
      await page.getByRole("button", { name: "Stop" }).click();
      const answer = await answered(page, 1);
      assert.equal(await answer.locator(".ending").textContent(), "Stopped");
      assert.notEqual((await answer.locator(".answer-text").textContent()).trim(), "");
      assert.ok(await question(page).isEnabled());
      await eventually("the engine ends the sequence", async () => (await server.metrics()).get("vllm:num_requests_running") === 0);
    }));

  test("a reload keeps the conversation, its system prompt and the settings", () =>
    withPage(server, {}, async (page) => {
      await page.getByLabel("System prompt").fill("You are terse.");
      await answered(page, await ask(page, CAPITAL));
      const before = await page.locator(".log").innerText();
      await page.reload();
      await answered(page, 1);
      assert.equal(await page.locator(".log").innerText(), before);
      assert.equal(await page.getByLabel("System prompt").inputValue(), "You are terse.");
      assert.equal(await page.getByLabel("Temperature").inputValue(), "0");
      assert.equal(await page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: CAPITAL, exact: true }).count(), 1);
    }));

  test("an answer that a reload interrupts says so and can be continued", () =>
    withPage(server, { settings: ENDLESS }, async (page) => {
      await ask(page, "Count to a thousand.");
      await page.getByText(/\d\d tokens/).first().waitFor();
      await page.waitForTimeout(1000);
      await page.reload();
      const answer = await answered(page, 1);
      assert.match(await answer.locator(".ending").textContent(), /Interrupted/);
      const before = await answer.locator(".answer-text").innerText();
      await page.getByLabel("Min tokens").fill("5");
      await page.getByLabel("Max tokens").fill("5");
      await answer.getByRole("button", { name: "Continue the answer" }).click();
      await page.locator(".ending", { hasText: "Cut at the token limit" }).waitFor();
      const after = await answer.locator(".answer-text").innerText();
      assert.ok(after.length > before.length && after.startsWith(before.trimEnd().slice(0, -8)), `${before}\n---\n${after}`);
    }));

  test("tokens are coloured by probability, and the arrow keys tell the alternatives", () =>
    withPage(server, {}, async (page) => {
      await page.getByRole("button", { name: "Ask for token probabilities" }).click();
      const answer = await answered(page, await ask(page, CAPITAL));
      const tokens = answer.getByRole("group", { name: /^Tokens/ });
      assert.equal(await tokens.locator(".token").count(), 8);
      assert.match(await tokens.innerText(), /The capital of France is Paris/);
      await tokens.focus();
      await page.keyboard.press("ArrowRight");
      assert.match(await answer.locator(".token-detail").innerText(), /^The [\d.]+ %/);
      await page.keyboard.press("End");
      assert.equal(await tokens.locator(".chosen").textContent(), "<|im_end|>");
      await answer.getByRole("button", { name: "Token probabilities" }).click();
      assert.match(await answer.locator(".answer-text").innerText(), /Paris/);
    }));

  test("the request copied as curl and as Python gives the same answer", () =>
    withPage(server, {}, async (page) => {
      const answer = await answered(page, await ask(page, `${CAPITAL} It's "simple"; $HOME \\ é 🙂`));
      const said = (await answer.locator(".answer-text").innerText()).trim();
      await answer.getByRole("button", { name: "Copy the request" }).click();
      const text = (name) => page.getByRole("region", { name }).innerText();
      const [curl, program] = [await text("curl"), await text("Python")];
      assert.ok(!curl.includes(KEY) && !program.includes(KEY), "the key is not shown");
      const env = { ...process.env, IZAR_API_KEY: KEY };
      const reply = execFileSync("bash", ["-c", curl], { env, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
      const pieces = reply.split("\n").filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
      assert.equal(pieces.map((piece) => piece.choices[0]?.delta.content ?? "").join("").trim(), said);
      assert.ok(existsSync(python), "scripts/setup --test makes it");
      assert.equal(execFileSync(python, ["-c", program], { env, encoding: "utf8" }).trim(), said);
    }));

  test("a wrong key is told apart from a missing one's answer, and the right one opens", () =>
    withPage(server, { key: null, expected: /status of 401/ }, async (page) => {
      await waitForState(page, "key");
      await page.getByText("This server asks for an API key.").first().waitFor();
      const give = async (key) => {
        await page.getByRole("button", { name: "API key" }).click();
        await page.getByLabel("Key", { exact: true }).fill(key);
        await page.keyboard.press("Enter");
      };
      await give("wrong");
      await ask(page, CAPITAL);
      const problem = answers(page).first().getByRole("alert");
      await problem.getByText("401: a valid API key is required").waitFor();
      await waitForState(page, "key");
      await give(KEY);
      await waitForState(page, "ready");
      await problem.getByRole("button", { name: "Try again" }).click();
      await answers(page).getByText("Paris").waitFor();
      assert.equal(await page.evaluate(() => localStorage.getItem("izar.key")), null, "kept for the tab alone");
    }));

  test("a server that restarts is found again, and the conversation goes on", () =>
    withPage(server, { settings: { ...GREEDY, ...ENDLESS }, expected: /ERR_|status of 503|Failed to load resource/ }, async (page) => {
      await ask(page, "Count to a thousand.");
      await page.getByText(/[3-9] tokens/).first().waitFor();
      await server.stop("SIGKILL");
      const answer = await answered(page, 1);
      await answer.getByRole("alert").getByText(/connection broke|cannot be reached/).waitFor();
      await waitForState(page, "unreachable");
      await server.start();
      await waitForState(page, "ready");
      await page.getByLabel("Min tokens").fill("");
      await page.getByLabel("Max tokens").fill("20");
      const second = await answered(page, await ask(page, CAPITAL));
      await second.locator(".stats").waitFor();
      assert.equal(await second.getByRole("alert").count(), 0);
    }));
}
