// The panel with the system prompt and the sampling parameters. It sits beside the chat where there is room, and over it where there is not.

import { h, iconButton, textButton } from "../dom.js";
import { PARAMETERS, loadSampling, problemWith, saveSampling } from "./sampling.js";

export class Settings {
  #inputs = new Map();

  /** `systemChanged` is called with the system prompt as it is typed. */
  constructor({ systemChanged, close }) {
    this.values = loadSampling();
    this.system = h("textarea.input", {
      rows: 4, id: "system-prompt", placeholder: "You are…", on: { input: () => systemChanged(this.system.value) },
    });
    this.root = h("aside.settings", { id: "settings", attrs: { "aria-label": "Settings" }, on: { keydown: (event) => event.key === "Escape" && close() } },
      h("div.panel-head", {}, h("h2", { textContent: "Settings" }), iconButton("close", "Close the settings", close)),
      h("label.field", {}, h("span", { textContent: "System prompt, of this chat" }), this.system),
      h("h3", { textContent: "Sampling, of all chats" }),
      h("div.parameters", {}, ...PARAMETERS.map((parameter) => this.#field(parameter))),
      h("div.row", {}, textButton("Back to the server's defaults", () => this.#reset())));
  }

  #field(parameter) {
    const { name, label, kind, hint } = parameter;
    const input = kind === "lines" ? h("textarea.input", { rows: 2 })
      : kind === "choice" ? h("select.input", {}, ...parameter.choices.map(([value, text]) => h("option", { value, textContent: text })))
      : h("input.input", { type: "text", inputMode: "decimal", autocomplete: "off", spellcheck: false, placeholder: "default" });
    const problem = h("span.field-problem", { id: `problem-${name}`, hidden: true });
    input.id = `parameter-${name}`;
    input.value = this.values[name] ?? "";
    input.setAttribute("aria-describedby", problem.id);
    input.addEventListener("input", () => {
      this.values[name] = input.value;
      saveSampling(this.values);
      this.#check(parameter);
    });
    this.#inputs.set(name, { input, problem });
    const wide = kind === "lines" || kind === "choice";
    const field = h(wide ? "label.field.wide" : "label.field", { title: hint ?? "" }, h("span", { textContent: label }), input, problem);
    queueMicrotask(() => this.#check(parameter));
    return field;
  }

  #check(parameter) {
    const { input, problem } = this.#inputs.get(parameter.name);
    const text = problemWith(parameter, input.value);
    problem.textContent = text ?? "";
    problem.hidden = text === null;
    input.setAttribute("aria-invalid", String(text !== null));
  }

  #reset() {
    this.values = {};
    saveSampling(this.values);
    for (const parameter of PARAMETERS) {
      this.#inputs.get(parameter.name).input.value = "";
      this.#check(parameter);
    }
  }

  /** Goes to a parameter's field. */
  focus(name) {
    this.#inputs.get(name).input.focus();
  }
}
