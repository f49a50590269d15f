// Asks for the API key.

import { h, textButton } from "./dom.js";
import { apiKey, keyIsRemembered, setApiKey } from "./store.js";

/** Fills `dialog`; returns what opens it. `changed` is called once a key has been set or forgotten. */
export function keyDialog(dialog, changed) {
  const input = h("input.input.mono", { type: "password", autocomplete: "off", spellcheck: false, id: "api-key" });
  const shown = h("input", { type: "checkbox", on: { change: () => (input.type = shown.checked ? "text" : "password") } });
  const remember = h("input", { type: "checkbox", id: "remember-key" });
  const use = (key) => {
    setApiKey(key, remember.checked);
    dialog.close();
    changed();
  };
  const save = () => use(input.value.trim());
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    // The rest of the key press would go to the button that has the focus next.
    event.preventDefault();
    save();
  });
  dialog.append(h("div.stack", {},
    h("div", {}, h("h2", { id: "key-title", textContent: "API key" }),
      h("p.hint", { textContent: "Sent to this server with every request, and to nobody else." })),
    h("label.field", {}, h("span", { textContent: "Key" }), input),
    h("div.row", {}, h("label.check", {}, shown, "Show"), h("label.check", {}, remember, "Remember in this browser")),
    h("div.row.end", {}, textButton("Forget", () => use(""), "danger"), textButton("Cancel", () => dialog.close()), textButton("Use this key", save, "primary"))));
  return () => {
    input.value = apiKey();
    remember.checked = keyIsRemembered();
    if (!dialog.open) dialog.showModal();
    input.focus();
  };
}
