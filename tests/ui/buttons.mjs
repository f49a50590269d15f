// What the chat's buttons do, and how it tells errors; the answers are made up.

import assert from "node:assert/strict";
import { test } from "node:test";
import { answered, answers, ask, question, refusal, scripted, stream, waitForState, withPage } from "./support.mjs";

const saying = (text) => stream([{ content: text }]);

/** A page whose chat answers with `replies`, in order. */
function withReplies(server, replies, options, act) {
  let requests = null;
  const prepare = async (page) => {
    requests = await scripted(page, replies);
  };
  return withPage(server, { ...options, prepare }, (page) => act(page, () => requests));
}

export function buttonTests(server) {
  test("editing a question asks again and drops what came after", () =>
    withReplies(server, [saying("one"), saying("two"), saying("three")], {}, async (page, requests) => {
      await answered(page, await ask(page, "first"));
      await answered(page, await ask(page, "second"));
      await page.getByRole("article", { name: "You" }).first().hover();
      await page.getByRole("button", { name: "Edit and ask again" }).first().click();
      await page.getByLabel("Edit the message").fill("changed");
      await page.getByRole("button", { name: "Send" }).first().click();
      await answers(page).getByText("three").waitFor();
      assert.equal(await answers(page).count(), 1);
      assert.deepEqual(requests().at(-1).messages, [{ role: "user", content: "changed" }]);
    }));

  test("an answer is made again, rewritten, deleted and brought back", () =>
    withReplies(server, [saying("one"), saying("two")], {}, async (page) => {
      await answered(page, await ask(page, "first"));
      await page.getByRole("button", { name: "Answer again" }).click();
      await answers(page).getByText("two").waitFor();
      await page.getByRole("button", { name: "Edit the answer" }).click();
      await page.getByLabel("Edit the message").fill("**mine**");
      await page.getByRole("button", { name: "Save" }).click();
      await answers(page).locator("strong", { hasText: "mine" }).waitFor();
      await answers(page).getByRole("button", { name: "Delete" }).click();
      assert.equal(await answers(page).count(), 0);
      await page.getByRole("button", { name: "Undo" }).click();
      assert.equal(await answers(page).locator(".answer-text").innerText(), "mine");
    }));

  test("conversations are listed, opened, deleted and brought back", () =>
    withReplies(server, [saying("one"), saying("two")], {}, async (page) => {
      const list = page.getByRole("navigation", { name: "Conversations" });
      await answered(page, await ask(page, "first"));
      await page.getByRole("button", { name: "New chat" }).click();
      assert.equal(await answers(page).count(), 0);
      await answered(page, await ask(page, "second"));
      await list.getByRole("button", { name: "first", exact: true }).click();
      assert.equal(await answers(page).locator(".answer-text").innerText(), "one");
      await list.getByRole("listitem").filter({ hasText: "first" }).hover();
      await list.getByRole("button", { name: "Delete: first" }).click();
      assert.equal(await answers(page).locator(".answer-text").innerText(), "two");
      await page.getByRole("button", { name: "Undo" }).click();
      assert.equal(await answers(page).locator(".answer-text").innerText(), "one");
    }));

  test("sampling settings reach the request, and a wrong one is pointed at instead of sent", () =>
    withReplies(server, [saying("one")], {}, async (page, requests) => {
      await page.getByLabel("Top p").fill("7");
      await question(page).fill("hello");
      await question(page).press("Enter");
      await page.getByRole("status").filter({ hasText: "Top p must be between 0 and 1" }).waitFor();
      assert.equal(requests().length, 0);
      await page.getByLabel("Top p").fill("0.9");
      await page.getByLabel("Seed").fill("42");
      await page.getByLabel("Stop strings").fill("END\nSTOP");
      await page.getByLabel("Thinking").selectOption("off");
      await question(page).press("Enter");
      await answered(page, 1);
      const { temperature, top_p, seed, stop, max_tokens, chat_template_kwargs } = requests()[0];
      assert.deepEqual({ temperature, top_p, seed, stop, max_tokens, chat_template_kwargs },
        { temperature: 0, top_p: 0.9, seed: 42, stop: ["END", "STOP"], max_tokens: 40, chat_template_kwargs: { enable_thinking: false } });
    }));

  test("reasoning is shown folded and is not sent back", () =>
    withReplies(server, [stream([{ reasoning_content: "deep " }, { reasoning_content: "thought" }, { content: "answer" }])], {}, async (page, requests) => {
      const answer = await answered(page, await ask(page, "why"));
      assert.ok(!(await answer.getByText("deep thought").isVisible()));
      await answer.getByText("Thought", { exact: true }).click();
      await answer.getByText("deep thought").waitFor();
      await answered(page, await ask(page, "and?"));
      assert.ok(!JSON.stringify(requests()[1]).includes("deep"));
    }));

  const refusals = [
    [refusal(429, "rate_limit_exceeded", "the server is at capacity: the queue is full", { "retry-after": "7" }), "429: the server is at capacity", "Try again in 7 s."],
    [refusal(503, "shutting_down", "the server is shutting down"), "503: the server is shutting down", "takes no requests now"],
    [refusal(400, "invalid_value", "`seed` must be less"), "400: `seed` must be less", ""],
    [{ status: 502, contentType: "text/html", body: "<h1>Bad gateway</h1>" }, "502", ""],
  ];
  for (const [reply, title, hint] of refusals) {
    test(`a ${reply.status} is explained and can be tried again`, () =>
      withReplies(server, [reply, saying("better")], { expected: /status of/ }, async (page) => {
        const answer = await answered(page, await ask(page, "hello"));
        const problem = answer.getByRole("alert");
        assert.ok((await problem.innerText()).includes(title), await problem.innerText());
        assert.ok((await problem.innerText()).includes(hint), await problem.innerText());
        await problem.getByRole("button", { name: "Try again" }).click();
        await answers(page).getByText("better").waitFor();
      }));
  }

  test("an error in the stream and a stream that breaks off keep what had come", () => {
    const error = `event: error\ndata: ${JSON.stringify({ error: { message: "the server is shutting down", code: "shutting_down" } })}\n\n`;
    return withReplies(server, [stream([{ content: "so far" }], { tail: error }), stream([{ content: "so far" }], { tail: "" })], {}, async (page) => {
      for (const text of ["the server is shutting down", "the connection broke before the answer was whole"]) {
        const answer = await answered(page, await ask(page, "hello"));
        await answer.getByRole("alert").getByText(text).waitFor();
        assert.equal(await answer.locator(".answer-text").innerText(), "so far");
      }
    });
  });

  test("a draining server is told of", () =>
    withPage(server, {
      expected: /status of 503/,
      prepare: (page) => page.route("**/health", (route) => route.fulfill(refusal(503, "shutting_down", "the server is shutting down"))),
    }, async (page) => {
      await waitForState(page, "draining");
      await page.getByText("The server is draining").waitFor();
    }));
}
