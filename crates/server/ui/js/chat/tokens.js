// An answer's tokens, coloured by how probable the model thought each. The arrow keys walk through them; a panel below tells the
// alternatives of the one that is chosen.

import { h } from "../dom.js";

/** Lower bounds of the classes `p0` (least probable) to `p5`. */
const BOUNDS = [0, 0.05, 0.2, 0.5, 0.8, 0.95];

const classOf = (probability) => `p${BOUNDS.findLastIndex((bound) => probability >= bound)}`;
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(logprob > -4.6 ? 1 : 3)} %`;
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

export class TokenView {
  #tokens = [];
  #chosen = -1;

  constructor() {
    this.text = h("div.token-text", {
      tabIndex: 0,
      attrs: { role: "group", "aria-label": "Tokens with their probabilities; arrow keys choose one" },
      on: { keydown: (event) => this.#key(event), click: (event) => this.#choose(Number(event.target.dataset?.index ?? -1)) },
    });
    this.detail = h("div.token-detail", { attrs: { "aria-live": "polite" } }, h("span.hint", { textContent: "Choose a token to see its alternatives." }));
    const legend = h("div.token-legend", { attrs: { "aria-hidden": "true" } },
      ...BOUNDS.map((bound, index) => h(`span.token.p${index}`, { textContent: index === 0 ? "< 5 %" : `≥ ${Math.round(bound * 100)} %` })));
    this.root = h("div.tokens", {}, this.text, this.detail, legend);
  }

  /** Shows `tokens`, of which those shown before have not changed. */
  show(tokens) {
    if (tokens.length < this.#tokens.length) this.text.replaceChildren();
    const known = this.text.childElementCount;
    this.#tokens = tokens;
    this.text.append(...tokens.slice(known).map((token, offset) => this.#span(token, known + offset)));
  }

  #span(token, index) {
    // A line break has no width to be seen by.
    const text = token.text.includes("\n") ? token.text.replaceAll("\n", "⏎\n") : token.text;
    return h(`span.token.${classOf(Math.exp(token.logprob))}`, { textContent: text, data: { index } });
  }

  #key(event) {
    const last = this.#tokens.length - 1;
    const to = { ArrowRight: this.#chosen + 1, ArrowLeft: this.#chosen - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#choose(Math.min(last, Math.max(0, to)));
  }

  #choose(index) {
    const token = this.#tokens[index];
    if (token === undefined) return;
    this.text.children[this.#chosen]?.classList.remove("chosen");
    this.#chosen = index;
    this.text.children[index].classList.add("chosen");
    this.text.children[index].scrollIntoView({ block: "nearest" });
    const chosen = h("strong", {}, h("code", { textContent: visible(token.text) }), ` ${percent(token.logprob)}`);
    const others = token.top.filter(([text]) => text !== token.text).map(([text, logprob]) =>
      h("span.alternative", {}, h("code", { textContent: visible(text) }), ` ${percent(logprob)}`));
    this.detail.replaceChildren(chosen, ...others);
  }
}
