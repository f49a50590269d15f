// The chat: which conversation is open, and what the buttons do to it.

import { h, iconButton, textButton, toast } from "../dom.js";
import * as store from "../store.js";
import { Composer } from "./composer.js";
import { newAnswer, newConversation, newQuestion, settle, titleOf } from "./conversation.js";
import { AnswerView, QuestionView } from "./message.js";
import { showRequest } from "./request_dialog.js";
import { firstProblem } from "./sampling.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { requestFor, streamInto } from "./stream.js";

const SAVE_EVERY_MS = 700;
/** A reader who is this near to the end wants to see the end. */
const NEAR_PX = 48;

const NOTICES = {
  draining: "The server is draining: it finishes what it has begun and takes nothing new.",
  loading: "The server is loading its model.",
  failed: "The engine has failed. The server's log says why.",
  unreachable: "The server cannot be reached. Trying again.",
  key: "This server asks for an API key.",
};

const roomy = matchMedia("(min-width: 1100px)");

export class ChatView {
  #conversations = [];
  #current = newConversation();
  #views = new Map();
  #abort = null;
  #lastSave = 0;

  /** `connection` tells the model and whether the server is there; `askKey` opens the key dialog. */
  constructor(root, connection, askKey) {
    this.root = root;
    this.connection = connection;
    this.actions = this.#actions(askKey);
    this.sidebar = new Sidebar({
      open: (id) => this.#open(id), create: () => this.#create(), remove: (id) => this.#removeConversation(id), close: () => this.#showPanel("sidebar", false),
    });
    this.settings = new Settings({ systemChanged: (text) => this.#setSystem(text), close: () => this.#showPanel("settings", false) });
    this.composer = new Composer({ send: (text) => this.#ask(text), stop: () => this.stop() });
    this.#layOut(askKey);
    connection.addEventListener("change", () => this.#connectionChanged());
  }

  #layOut(askKey) {
    this.sidebarButton = iconButton("menu", "Conversations", () => this.#togglePanel("sidebar"), { "aria-controls": "sidebar" });
    this.settingsButton = iconButton("sliders", "Settings", () => this.#togglePanel("settings"), { "aria-controls": "settings" });
    this.scoresButton = iconButton("palette", "Ask for token probabilities", () => this.#toggleScores(), { "aria-pressed": "false" });
    this.title = h("h1.chat-title");
    const tools = h("div.chat-tools", {}, this.sidebarButton, this.title, this.scoresButton,
      iconButton("code", "Copy the request", () => this.actions.showRequest(null)), this.settingsButton);
    this.noticeText = h("span");
    this.noticeKey = textButton("Enter a key", askKey);
    this.notice = h("div.notice", { hidden: true, attrs: { role: "status" } }, this.noticeText, this.noticeKey);
    this.log = h("div.log", { attrs: { role: "log", "aria-live": "off", "aria-label": "Messages" } });
    this.scroller = h("div.scroller", { tabIndex: 0, attrs: { role: "region", "aria-label": "Conversation" }, on: { scroll: () => this.#scrolled() } }, this.log);
    this.down = iconButton("down", "To the end", () => this.#toEnd());
    this.down.classList.add("to-end");
    this.said = h("div.sr-only", { attrs: { role: "status" } });
    this.root.append(this.sidebar.root,
      h("div.thread", {}, tools, this.notice, this.scroller, h("div.dock", {}, this.down, this.composer.root), this.said), this.settings.root);
    this.scores = store.loadSetting("scores", false);
    this.scoresButton.setAttribute("aria-pressed", String(this.scores));
    this.#showPanel("sidebar", roomy.matches && store.loadSetting("sidebar", true), false);
    this.#showPanel("settings", roomy.matches && store.loadSetting("settings", true), false);
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.#abort && this.stop());
    addEventListener("pagehide", () => this.#abort && this.#keep(this.#current));
  }

  async start() {
    this.#conversations = (await store.loadConversations()).map(settle);
    this.#current = this.#conversations[0] ?? newConversation();
    this.#showConversation();
    this.#connectionChanged();
  }

  /** Called when the view comes to the front. */
  enter() {
    if (!matchMedia("(pointer: coarse)").matches) this.composer.area.focus();
  }

  // Panels.

  #togglePanel(name) {
    const panel = this[name].root;
    this.#showPanel(name, panel.hidden);
    if (!panel.hidden && !roomy.matches) panel.querySelector("textarea, button")?.focus();
  }

  #showPanel(name, shown, remember = true) {
    const button = this[`${name}Button`];
    const hadFocus = this[name].root.contains(document.activeElement);
    this[name].root.hidden = !shown;
    button.setAttribute("aria-expanded", String(shown));
    if (!shown && hadFocus) button.focus();
    // What covers the chat on a phone is not meant to be there tomorrow.
    if (remember && roomy.matches) store.saveSetting(name, shown);
  }

  #toggleScores() {
    this.scores = !this.scores;
    store.saveSetting("scores", this.scores);
    this.scoresButton.setAttribute("aria-pressed", String(this.scores));
    toast(this.scores ? "The next answers come with token probabilities" : "The next answers come without token probabilities");
  }

  // Conversations.

  #create() {
    this.stop();
    this.#current = newConversation(this.#current.system);
    this.#showConversation();
    if (!roomy.matches) this.#showPanel("sidebar", false);
    this.composer.area.focus();
  }

  #open(id) {
    const found = this.#conversations.find((conversation) => conversation.id === id);
    if (found === undefined) return;
    this.stop();
    this.#current = found;
    this.#showConversation();
    if (!roomy.matches) this.#showPanel("sidebar", false);
  }

  #removeConversation(id) {
    const removed = this.#conversations.find((conversation) => conversation.id === id);
    if (removed === undefined) return;
    if (removed === this.#current) this.stop();
    this.#conversations = this.#conversations.filter((conversation) => conversation !== removed);
    store.deleteConversation(id).catch(() => {});
    if (removed === this.#current) {
      this.#current = this.#conversations[0] ?? newConversation();
      this.#showConversation();
    } else {
      this.#showList();
    }
    toast("Conversation deleted", { label: "Undo", run: () => this.#restore(removed) });
  }

  #restore(conversation) {
    this.#current = conversation;
    this.#save();
    this.#showConversation();
  }

  #setSystem(text) {
    this.#current.system = text;
    if (this.#current.messages.length > 0) this.#save();
  }

  #save() {
    const conversation = this.#current;
    conversation.updated = Date.now();
    conversation.title = titleOf(conversation);
    this.#conversations = [conversation, ...this.#conversations.filter((other) => other !== conversation)];
    this.#lastSave = performance.now();
    store.saveConversation(conversation).catch(() => toast("The browser has no room to keep this conversation"));
    this.#showList();
  }

  // Showing.

  #showList() {
    this.title.textContent = titleOf(this.#current);
    this.sidebar.show(this.#conversations, this.#current.id);
  }

  #showConversation() {
    this.settings.system.value = this.#current.system;
    this.#views.clear();
    this.log.replaceChildren(...this.#current.messages.map((message) => this.#viewOf(message).root));
    this.#showEmpty();
    this.#showList();
    this.#toEnd();
  }

  #viewOf(message) {
    const view = message.role === "user" ? new QuestionView(message, this.actions) : new AnswerView(message, this.actions);
    this.#views.set(message, view);
    return view;
  }

  #showEmpty() {
    this.log.querySelector(".empty")?.remove();
    if (this.#current.messages.length > 0) return;
    const name = this.connection.model?.id;
    this.log.append(h("div.empty", {},
      h("p.empty-title", {}, name ? "Ask " : "Ask the model", name ? h("bdi", { textContent: name }) : null),
      h("p.hint", { textContent: "What you write goes to this server and is kept in this browser only." })));
  }

  #near() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  #toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.following = true;
    this.down.hidden = true;
  }

  #scrolled() {
    this.following = this.#near();
    this.down.hidden = this.following;
  }

  #connectionChanged() {
    const { state } = this.connection;
    const text = NOTICES[state];
    this.notice.hidden = text === undefined;
    this.noticeText.textContent = text ?? "";
    this.noticeKey.hidden = state !== "key";
    this.root.dataset.state = state;
    this.#showEmpty();
  }

  // Asking.

  #ask(text) {
    if (!this.#samplingIsRight()) return false;
    const question = newQuestion(text);
    this.#current.messages.push(question);
    this.log.append(this.#viewOf(question).root);
    this.#answer();
    return true;
  }

  #samplingIsRight() {
    const wrong = firstProblem(this.settings.values);
    if (wrong === null) return true;
    this.#showPanel("settings", true);
    this.settings.focus(wrong.parameter.name);
    toast(wrong.problem);
    return false;
  }

  #requestFor(count, continues = false, logprobs = this.scores) {
    return requestFor(this.#current, count, { model: this.connection.model?.id, sampling: this.settings.values, logprobs, continues });
  }

  /** Asks for an answer to everything said so far. */
  #answer(scores = this.scores) {
    const answer = newAnswer(this.connection.model?.id ?? "", scores);
    const body = this.#requestFor(this.#current.messages.length, false, scores);
    this.#current.messages.push(answer);
    this.log.append(this.#viewOf(answer).root);
    this.#showEmpty();
    return this.#stream(answer, body);
  }

  async #stream(answer, body) {
    this.stop();
    const conversation = this.#current;
    const view = this.#views.get(answer);
    const abort = new AbortController();
    this.#abort = abort;
    this.composer.writing = true;
    this.said.textContent = "";
    this.#save();
    this.#toEnd();
    view.draw();
    await streamInto(answer, body, abort.signal, () => {
      view.drawSoon();
      if (performance.now() - this.#lastSave > SAVE_EVERY_MS) this.#keep(conversation);
    });
    if (this.#abort === abort) {
      this.#abort = null;
      this.composer.writing = false;
    }
    view.draw();
    this.actions.drawn();
    this.#keep(conversation);
    this.said.textContent = answer.error ? `No answer: ${answer.error.message}` : "The answer is complete";
    if (answer.error) this.connection.check();
  }

  /** Saves a conversation that may no longer be the open one, or may have been deleted. */
  #keep(conversation) {
    this.#lastSave = performance.now();
    if (this.#conversations.includes(conversation)) store.saveConversation(conversation).catch(() => {});
  }

  stop() {
    this.#abort?.abort();
  }

  #cutAt(message, keep) {
    this.stop();
    const index = this.#current.messages.indexOf(message) + (keep ? 1 : 0);
    for (const gone of this.#current.messages.splice(index)) this.#views.get(gone)?.root.remove();
  }

  #actions(askKey) {
    return {
      askKey,
      drawn: () => (this.following ? this.#toEnd() : null),
      showRequest: (answer) => {
        const count = answer ? this.#current.messages.indexOf(answer) : this.#current.messages.length;
        showRequest(this.#requestFor(count));
      },
      resend: (question, text) => {
        if (!this.#samplingIsRight()) return;
        this.#cutAt(question, false);
        this.#ask(text.trim() || question.content);
      },
      rewrite: (answer, text) => {
        Object.assign(answer, { content: text, tokens: null, showTokens: false });
        this.#views.get(answer).draw();
        this.#save();
      },
      regenerate: (answer) => {
        if (!this.#samplingIsRight()) return;
        this.#cutAt(answer, false);
        this.#answer();
      },
      continueAnswer: (answer) => {
        this.#cutAt(answer, true);
        const body = this.#requestFor(this.#current.messages.length, true);
        Object.assign(answer, { finish: null, error: null });
        // Log probabilities of the continuation alone would look like the whole.
        if (answer.tokens === null) Object.assign(answer, { showTokens: false });
        this.#stream(answer, body);
      },
      remove: (message) => {
        const index = this.#current.messages.indexOf(message);
        if (this.#views.get(message).writing) this.stop();
        this.#current.messages.splice(index, 1);
        this.#views.get(message).root.remove();
        this.#save();
        this.#showEmpty();
        const conversation = this.#current;
        toast("Message deleted", { label: "Undo", run: () => {
          conversation.messages.splice(index, 0, message);
          this.#restore(conversation);
        } });
      },
      toggleTokens: (answer) => {
        if (answer.tokens === null) {
          toast("This answer came without probabilities", { label: "Ask again with them", run: () => {
            this.#cutAt(answer, false);
            this.#answer(true);
          } });
          return;
        }
        answer.showTokens = !answer.showTokens;
        this.#views.get(answer).draw();
        this.#keep(this.#current);
      },
    };
  }
}
