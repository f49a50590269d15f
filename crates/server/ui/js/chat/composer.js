// The box that a question is written in. Enter sends, Shift+Enter breaks the line; on a touch keyboard Enter breaks the line.

import { h, iconButton } from "../dom.js";

const touch = matchMedia("(pointer: coarse)");

export class Composer {
  /** `send` gets the text and says whether it was taken; `stop` ends the answer that is being written. */
  constructor({ send, stop }) {
    this.send = send;
    this.area = h("textarea.question", {
      rows: 1, id: "question", placeholder: "Ask something", enterKeyHint: touch.matches ? "enter" : "send",
      attrs: { "aria-label": "Your message" }, on: { keydown: (event) => this.#key(event), input: () => this.#fit() },
    });
    this.sendButton = iconButton("send", "Send", () => this.submit());
    this.sendButton.classList.add("send");
    this.stopButton = iconButton("stop", "Stop", stop);
    this.stopButton.classList.add("send", "stop");
    this.stopButton.hidden = true;
    this.root = h("div.composer", {}, this.area, this.sendButton, this.stopButton);
    this.#fit();
  }

  #key(event) {
    // Enter that ends a composition belongs to the input method.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
    event.preventDefault();
    this.submit();
  }

  /** As high as its text, up to what the style sheet allows. */
  #fit() {
    this.area.rows = 1;
    const line = Number.parseFloat(getComputedStyle(this.area).lineHeight) || 22;
    this.area.rows = Math.min(10, Math.max(1, Math.round(this.area.scrollHeight / line)));
    this.sendButton.disabled = this.area.value.trim() === "";
  }

  submit() {
    const text = this.area.value.trim();
    if (text === "" || !this.stopButton.hidden) return;
    if (!this.send(text)) return;
    this.area.value = "";
    this.#fit();
  }

  /** Shows the stop button while an answer is being written. */
  set writing(writing) {
    const focused = document.activeElement;
    this.stopButton.hidden = !writing;
    this.sendButton.hidden = writing;
    // A button that goes takes the focus with it.
    if (focused === this.stopButton && !writing) this.area.focus();
    if (focused === this.sendButton && writing) this.stopButton.focus();
  }
}
