// The list of conversations. On a narrow page it lies over the chat.

import { h, iconButton, textButton, icon } from "../dom.js";
import { titleOf } from "./conversation.js";

export class Sidebar {
  constructor({ open, create, remove, close }) {
    this.act = { open, remove };
    this.list = h("ul.conversations");
    const create_ = textButton("New chat", create);
    create_.prepend(icon("plus"));
    this.root = h("nav.sidebar", { id: "sidebar", attrs: { "aria-label": "Conversations" }, on: { keydown: (event) => event.key === "Escape" && close() } },
      h("div.panel-head", {}, create_, iconButton("close", "Close the list", close)), this.list);
  }

  show(conversations, currentId) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.list.replaceChildren(...conversations.map((conversation) => {
      const title = titleOf(conversation);
      const current = conversation.id === currentId;
      return h("li", {},
        h("button.conversation", {
          type: "button", title, textContent: title, data: { id: conversation.id }, attrs: { "aria-current": current ? "true" : null },
          on: { click: () => this.act.open(conversation.id) },
        }),
        iconButton("trash", `Delete: ${title}`, () => this.act.remove(conversation.id)));
    }));
    if (focused) [...this.list.querySelectorAll("button.conversation")].find((button) => button.dataset.id === focused)?.focus();
  }
}
