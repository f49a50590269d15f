// Shows a request as a command and as a program, to be copied.

import { BASE } from "../api.js";
import { copyText, h, textButton } from "../dom.js";
import { apiKey } from "../store.js";
import { asCurl, asPython } from "./snippets.js";

function snippet(title, text) {
  return h("section", {},
    h("div.row.between", {}, h("h3", { textContent: title }), textButton(`Copy as ${title}`, () => copyText(text, title))),
    h("pre.snippet", { tabIndex: 0, attrs: { role: "region", "aria-label": title } }, h("code", { textContent: text })));
}

/** Opens the dialog over `body`; the key itself is never in it. */
export function showRequest(body) {
  const base = new URL("v1/", BASE).href;
  const hasKey = apiKey() !== "";
  const dialog = h("dialog.dialog.wide", { attrs: { "aria-label": "The request" }, on: { close: () => dialog.remove() } },
    h("div.stack", {},
      h("h2", { textContent: "The request" }),
      snippet("curl", asCurl(base, body, hasKey)),
      snippet("Python", asPython(`${base}`.replace(/\/$/, ""), body, hasKey)),
      h("div.row.end", {}, textButton("Close", () => dialog.close(), "primary"))));
  document.body.append(dialog);
  dialog.showModal();
}
