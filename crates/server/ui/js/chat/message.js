// One message on the page. It knows how to show itself and which buttons it has; what they do is the chat's (view.js).

import { copyText, h, iconButton, textButton } from "../dom.js";
import { MarkdownView } from "../markdown.js";
import { TokenView } from "./tokens.js";

/** Drawing may take one part in so many of the time. */
const DRAW_SHARE = 6;
const MIN_PAUSE_MS = 50;

const ENDINGS = {
  length: "Cut at the token limit",
  stopped: "Stopped",
  interrupted: "Interrupted: the page was closed",
};

const HINTS = {
  key: "The key is missing or wrong.",
  busy: "The server has no room at the moment.",
  unavailable: "The server takes no requests now. It can be asked again once it is ready.",
  network: "What had come is kept. It can be asked again once the server is back.",
};

const number = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** `TTFT 31 ms · 212.4 tokens/s · 96 tokens`, from the browser's clock and the server's counts. */
function statsText(stats) {
  const parts = [];
  if (stats.ttftMs !== null) parts.push(`TTFT ${number(stats.ttftMs, stats.ttftMs < 10 ? 1 : 0)} ms`);
  if (stats.tokensPerSecond !== null) parts.push(`${number(stats.tokensPerSecond, 1)} tokens/s`);
  parts.push(`${number(stats.tokens, 0)} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats.promptTokens !== null) {
    const cached = stats.cachedTokens ? `, ${number(stats.cachedTokens, 0)} cached` : "";
    parts.push(`prompt ${number(stats.promptTokens, 0)}${cached}`);
  }
  return parts.join(" · ");
}

/** What a question and an answer have in common. `actions` is the chat's: see `ChatView.actions`. */
class MessageView {
  constructor(message, label, actions) {
    this.message = message;
    this.actions = actions;
    this.body = h("div.body");
    this.buttons = h("div.buttons", { attrs: { role: "group", "aria-label": "Actions" } });
    this.root = h(`article.message.${message.role}`, { data: { id: message.id }, attrs: { "aria-label": label } });
  }

  /** Turns the body into an editor. */
  edit(saveLabel, save) {
    const area = h("textarea.input", { value: this.message.content, rows: Math.min(16, this.message.content.split("\n").length + 1), attrs: { "aria-label": "Edit the message" } });
    const done = (text) => {
      editor.replaceWith(this.body);
      this.buttons.hidden = false;
      if (text !== null) save(text);
      else this.buttons.querySelector("button")?.focus();
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done(null);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(area.value);
    });
    const editor = h("div.editor", {}, area, h("div.row.end", {}, textButton("Cancel", () => done(null)), textButton(saveLabel, () => done(area.value), "primary")));
    this.body.replaceWith(editor);
    this.buttons.hidden = true;
    area.focus();
  }
}

export class QuestionView extends MessageView {
  constructor(message, actions) {
    super(message, "You", actions);
    this.body.classList.add("plain");
    this.body.textContent = message.content;
    this.buttons.append(
      iconButton("edit", "Edit and ask again", () => this.edit("Send", (text) => actions.resend(message, text))),
      iconButton("copy", "Copy", () => copyText(message.content, "Message")),
      iconButton("trash", "Delete", () => actions.remove(message)),
    );
    this.root.append(this.body, this.buttons);
  }
}

export class AnswerView extends MessageView {
  #markdown;
  #reasoning;
  #tokens = null;
  #timer = null;
  #wait = MIN_PAUSE_MS;

  constructor(message, actions) {
    super(message, "Answer", actions);
    this.prose = h("div.prose.answer-text");
    this.#markdown = new MarkdownView(this.prose);
    const thought = h("div.prose.thought");
    this.#reasoning = new MarkdownView(thought);
    this.summary = h("summary");
    this.thinking = h("details.thinking", { hidden: true, on: { toggle: () => this.#showReasoning() } }, this.summary, thought);
    this.calls = h("div.calls");
    this.problem = h("div.problem", { hidden: true, attrs: { role: "alert" } });
    this.ending = h("span.ending");
    this.stats = h("span.stats");
    this.body.append(this.thinking, this.prose, this.calls);
    this.root.append(this.body, this.problem, h("div.foot", {}, this.ending, this.stats, this.buttons));
    this.#addButtons();
    this.draw();
  }

  #addButtons() {
    const { message, actions } = this;
    this.probabilities = iconButton("palette", "Token probabilities", () => actions.toggleTokens(message), { "aria-pressed": "false" });
    this.continuing = iconButton("more", "Continue the answer", () => actions.continueAnswer(message));
    this.buttons.append(
      iconButton("copy", "Copy the answer", () => copyText(message.content, "Answer")),
      iconButton("redo", "Answer again", () => actions.regenerate(message)),
      this.continuing,
      this.probabilities,
      iconButton("code", "Copy the request", () => actions.showRequest(message)),
      iconButton("edit", "Edit the answer", () => this.edit("Save", (text) => actions.rewrite(message, text))),
      iconButton("trash", "Delete", () => actions.remove(message)),
    );
  }

  get writing() {
    return this.message.finish === null && this.message.error === null;
  }

  /** Draws soon: text that comes fast is drawn in larger pieces, so that drawing never takes the browser's time from reading. */
  drawSoon() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      const start = performance.now();
      this.draw();
      this.#wait = Math.max(MIN_PAUSE_MS, (performance.now() - start) * DRAW_SHARE);
      this.actions.drawn();
    }, this.#wait);
  }

  draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const { message } = this;
    this.root.classList.toggle("writing", this.writing);
    this.root.setAttribute("aria-busy", String(this.writing));
    this.#drawText();
    this.#drawReasoning();
    this.calls.replaceChildren(...message.toolCalls.filter(Boolean).map((call) =>
      h("div.call", {}, h("strong", { textContent: `${call.name}()` }), h("pre", { tabIndex: 0 }, h("code", { textContent: call.arguments })))));
    this.ending.textContent = ENDINGS[message.finish] ?? "";
    this.stats.textContent = message.stats ? statsText(message.stats) : "";
    this.buttons.hidden = this.writing;
    this.continuing.hidden = message.content === "" || !["length", "stopped", "interrupted"].includes(message.finish ?? (message.error ? "interrupted" : ""));
    this.#drawProblem();
  }

  #drawText() {
    const { message } = this;
    const asTokens = message.showTokens && message.tokens !== null;
    this.probabilities.setAttribute("aria-pressed", String(asTokens));
    if (asTokens) {
      this.#tokens ??= new TokenView();
      this.#tokens.show(message.tokens);
      if (!this.#tokens.root.isConnected) this.prose.replaceWith(this.#tokens.root);
      return;
    }
    if (this.#tokens?.root.isConnected) this.#tokens.root.replaceWith(this.prose);
    this.#markdown.show(message.content);
  }

  #drawReasoning() {
    const { reasoning, content } = this.message;
    this.thinking.hidden = reasoning === "";
    if (reasoning === "") return;
    const thinking = this.writing && content === "";
    this.summary.textContent = thinking ? "Thinking…" : "Thought";
    this.#showReasoning();
  }

  /** Folded text is not worth drawing. */
  #showReasoning() {
    if (this.thinking.open) this.#reasoning.show(this.message.reasoning);
  }

  #drawProblem() {
    const { error } = this.message;
    this.problem.hidden = error === null;
    if (error === null) {
      this.problem.replaceChildren();
      return;
    }
    if (this.problem.childElementCount > 0) return;
    const title = error.status ? `${error.status}: ${error.message}` : error.message;
    const hint = error.retryAfter && error.kind === "busy" ? `${HINTS.busy} Try again in ${error.retryAfter} s.` : HINTS[error.kind];
    const again = textButton("Try again", () => this.actions.regenerate(this.message), "primary");
    const key = error.kind === "key" ? textButton("Enter a key", () => this.actions.askKey()) : null;
    this.problem.append(h("div", {}, h("strong", { textContent: title }), hint ? h("p", { textContent: hint }) : null), h("div.row", {}, key, again));
  }
}
