// Small screens, keyboards, themes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { answered, answers, ask, question, scripted, stream, waitForState, withPage } from "./support.mjs";

const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };
const WIDE = `${"wide".repeat(80)}\n\n\`\`\`\n${"code ".repeat(60)}\n\`\`\`\n\n| ${"cell | ".repeat(12)}\n|${"---|".repeat(12)}\n| ${"x | ".repeat(12)}`;

async function fits(page) {
  const [content, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= screen, `${content} > ${screen}`);
  const out = await page.evaluate(() => [...document.querySelectorAll("button, a, input, select, textarea")]
    .filter((element) => element.checkVisibility({ opacityProperty: false, visibilityProperty: true }) && !element.closest(".skip, .prose, .sr-only"))
    .map((element) => ({ name: element.getAttribute("aria-label") ?? element.textContent ?? element.id, box: element.getBoundingClientRect() }))
    .filter(({ box }) => box.width > 0 && (box.right > innerWidth + 1 || box.left < -1 || box.height < 24 && box.width < 24)).map(({ name }) => name));
  assert.deepEqual(out, [], "out of sight, or too small to touch");
}

export function accessTests(server) {
  test("a phone shows everything within its width", () =>
    withPage(server, { context: PHONE, prepare: (page) => scripted(page, [stream([{ content: WIDE }])]) }, async (page) => {
      await waitForState(page, "ready");
      await question(page).fill("Show me something wide.");
      await page.getByRole("button", { name: "Send" }).tap();
      await answered(page, 1);
      await fits(page);
      for (const name of ["Settings", "Conversations"]) {
        await page.getByRole("button", { name, exact: true }).tap();
        await page.locator(name === "Settings" ? "#settings" : "#sidebar").waitFor();
        await fits(page);
        await page.getByRole("button", { name: name === "Settings" ? "Close the settings" : "Close the list" }).tap();
      }
      await page.getByRole("link", { name: "Engine" }).tap();
      await page.locator("#engine[data-link=live]").waitFor();
      await fits(page);
    }));

  test("everything works by keyboard alone", () =>
    withPage(server, { prepare: (page) => scripted(page, [stream([{ content: "one" }])]) }, async (page) => {
      const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent);
      /** Whether one sees where the focus is: by an outline, or by the composer's frame. With the focus in the browser's own buttons, the page has none. */
      const seen = () => page.evaluate(() => {
        const element = document.activeElement;
        return element === document.body || getComputedStyle(element).outlineStyle !== "none" || getComputedStyle(element.parentElement).boxShadow !== "none";
      });
      /** Presses Tab until `name` has the focus, each time where it can be seen. */
      const reach = async (name, key = "Tab") => {
        for (let presses = 0; presses < 60; presses++) {
          if ((await focused()) === name) return;
          await page.keyboard.press(key);
          assert.ok(await seen(), await focused());
        }
        assert.fail(`never reached ${name}`);
      };
      await waitForState(page, "ready");
      assert.equal(await focused(), "Your message");
      await page.keyboard.type("hello");
      await page.keyboard.press("Shift+Enter");
      await page.keyboard.type("there");
      await page.keyboard.press("Enter");
      await answered(page, 1);
      assert.equal(await page.getByRole("article", { name: "You" }).locator(".body").innerText(), "hello\nthere");
      await reach("Answer again", "Shift+Tab");
      await page.keyboard.press("Enter");
      await answered(page, 1);
      await reach("Skip to content");
      await page.keyboard.press("Enter");
      assert.equal(await page.evaluate(() => document.activeElement.id), "main");
      await reach("Edit and ask again");
      await page.keyboard.press("Space");
      await page.getByLabel("Edit the message").waitFor();
      await page.keyboard.press("Escape");
      assert.equal(await page.getByLabel("Edit the message").count(), 0);
      await reach("Settings", "Shift+Tab");
      await page.keyboard.press("Enter");
      assert.ok(!(await page.locator("#settings").isVisible()));
      await reach("API key", "Shift+Tab");
      await page.keyboard.press("Enter");
      await page.locator("#key-dialog[open]").waitFor();
      await page.keyboard.press("Escape");
      assert.equal(await focused(), "API key");
      await reach("Engine", "Shift+Tab");
      await page.keyboard.press("Enter");
      await page.locator("#engine[data-link=live]").waitFor();
    }));

  test("Escape stops an answer", () =>
    withPage(server, { settings: { "izar.sampling": JSON.stringify({ temperature: "0", min_tokens: "4000" }) } }, async (page) => {
      await ask(page, "Count.");
      await page.getByText(/[3-9] tokens/).first().waitFor();
      await page.keyboard.press("Escape");
      await answers(page).getByText("Stopped").waitFor();
    }));

  test("the theme follows the system until one is chosen, and the choice stays", () =>
    withPage(server, { context: { colorScheme: "dark" } }, async (page) => {
      const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const dark = await background();
      await page.getByRole("button", { name: "Theme: as the system" }).click();
      const light = await background();
      assert.notEqual(light, dark);
      await page.reload();
      assert.equal(await background(), light);
      await page.getByRole("button", { name: "Theme: light" }).click();
      assert.equal(await background(), dark);
    }));

  test("what is on the page has names and roles", () =>
    withPage(server, { prepare: (page) => scripted(page, [stream([{ content: "one" }])]) }, async (page) => {
      await answered(page, await ask(page, "hello"));
      for (const view of ["chat", "engine"]) {
        await page.goto(`${server.url}#/${view}`);
        const nameless = await page.evaluate(() => [...document.querySelectorAll("button, a[href], input, select, textarea, [role=img], [role=region], section, nav, aside")]
          .filter((element) => element.checkVisibility())
          .filter((element) => !(element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.length || element.getAttribute("aria-labelledby")))
          .map((element) => element.outerHTML.slice(0, 120)));
        assert.deepEqual(nameless, []);
      }
    }));
}
