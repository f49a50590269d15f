// Every gauge and counter by its name in /metrics, to look one up.

import { h } from "../dom.js";

export class ValuesTable {
  #rows = new Map();

  constructor() {
    this.filter = h("input.input.mono", {
      type: "search", placeholder: "Filter", attrs: { "aria-label": "Filter the values by name" }, on: { input: () => this.#sift() },
    });
    this.body = h("tbody");
    this.root = h("details.card.wide.values", { on: { toggle: () => this.state && this.show(this.state) } },
      h("summary", {}, h("h2", { textContent: "All values, as /metrics has them" })), this.filter,
      h("div.table", { tabIndex: 0, attrs: { role: "region", "aria-label": "All values" } },
        h("table", {}, h("thead", {}, h("tr", {}, h("th", { textContent: "Name" }), h("th.align-right", { textContent: "Value" }))), this.body)));
  }

  show(state) {
    this.state = state;
    // What is folded is not drawn.
    if (!this.root.open) return;
    for (const [name, value] of Object.entries(state.values)) this.#cell(name).textContent = String(value);
  }

  #cell(name) {
    const known = this.#rows.get(name);
    if (known !== undefined) return known.cell;
    const cell = h("td.align-right", { data: { value: name } });
    const row = h("tr", {}, h("td", { textContent: name }), cell);
    this.#rows.set(name, { row, cell });
    this.body.append(row);
    this.#sift();
    return cell;
  }

  #sift() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const [name, { row }] of this.#rows) row.hidden = !name.toLowerCase().includes(wanted);
  }
}
