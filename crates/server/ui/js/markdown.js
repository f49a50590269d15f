// Markdown to elements. What a model writes is hostile: `marked` only cuts it into tokens, and the elements are built here from a fixed
// list. HTML stays text, images become links, links go to http, https and mailto alone, and nothing is ever parsed as HTML.

import { Lexer } from "../vendor/marked-18.2.1/marked.esm.js";
import { copyText, h, iconButton } from "./dom.js";

/** Longer texts are shown as they are: nobody reads them, and they are slow to cut. */
const MAX_CHARS = 200_000;
const MAX_DEPTH = 24;

const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);

const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", deg: "°", times: "×", minus: "−",
  ndash: "–", mdash: "—", hellip: "…", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", larr: "←", rarr: "→", le: "≤", ge: "≥", ne: "≠",
};

/** Character references become the characters they name. The result is for text nodes. */
function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/g, (all, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? all;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : "\ufffd";
  });
}

/** The address where it may be followed, or null. Relative ones would lead into this server. */
export function safeHref(href) {
  try {
    const url = new URL(decode(href));
    return SAFE_SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(href, children) {
  const safe = safeHref(href);
  if (safe === null) return h("span.dead-link", { title: "This address is not followed" }, ...children);
  return h("a", { href: safe, target: "_blank", rel: "noopener noreferrer nofollow", title: safe }, ...children);
}

function inline(tokens, depth) {
  return (tokens ?? []).map((token) => inlineNode(token, depth));
}

function inlineNode(token, depth) {
  if (depth > MAX_DEPTH) return token.raw;
  const children = () => inline(token.tokens, depth + 1);
  switch (token.type) {
    case "text":
    case "escape":
      return token.tokens ? h("span", {}, ...children()) : decode(token.text);
    case "strong":
      return h("strong", {}, ...children());
    case "em":
      return h("em", {}, ...children());
    case "del":
      return h("del", {}, ...children());
    case "codespan":
      return h("code", { textContent: token.text });
    case "br":
      return h("br");
    case "checkbox":
      return h("input", { type: "checkbox", checked: token.checked, disabled: true, attrs: { "aria-label": token.checked ? "done" : "to do" } });
    case "link":
      return link(token.href, children());
    case "image":
      return link(token.href, [`[image: ${decode(token.text) || "no description"}]`]);
    default:
      // HTML above all.
      return token.raw;
  }
}

function codeBlock(token) {
  const language = (token.lang ?? "").trim().split(/\s+/)[0].slice(0, 24);
  const copy = iconButton("copy", "Copy the code", () => copyText(token.text, "Code"));
  return h("div.code", {},
    h("div.code-head", {}, h("span", { textContent: language || "text" }), copy),
    h("pre", { tabIndex: 0, attrs: { role: "region", "aria-label": language ? `Code in ${language}` : "Code" } }, h("code", { textContent: token.text })));
}

function table(token, depth) {
  const cell = (tag) => (content, index) => {
    const align = token.align[index];
    return h(align ? `${tag}.align-${align}` : tag, {}, ...inline(content.tokens, depth + 1));
  };
  return h("div.table", { tabIndex: 0, attrs: { role: "region", "aria-label": "Table" } },
    h("table", {},
      h("thead", {}, h("tr", {}, ...token.header.map(cell("th")))),
      h("tbody", {}, ...token.rows.map((row) => h("tr", {}, ...row.map(cell("td")))))));
}

function list(token, depth) {
  const items = token.items.map((item) => h(item.task ? "li.task" : "li", {}, ...blocks(item.tokens, depth + 1)));
  if (!token.ordered) return h("ul", {}, ...items);
  const start = Number(token.start);
  return h("ol", { start: Number.isSafeInteger(start) ? start : 1 }, ...items);
}

function blockNode(token, depth) {
  if (depth > MAX_DEPTH) return h("p", { textContent: token.raw });
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "paragraph":
      return h("p", {}, ...inline(token.tokens, depth + 1));
    case "heading":
      // The page has headings of its own above these.
      return h(`h${Math.min(6, token.depth + 2)}`, {}, ...inline(token.tokens, depth + 1));
    case "code":
      return codeBlock(token);
    case "blockquote":
      return h("blockquote", {}, ...blocks(token.tokens, depth + 1));
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "hr":
      return h("hr");
    case "html":
      return h("p.raw", { textContent: token.raw.trimEnd() });
    default:
      return inlineNode(token, depth);
  }
}

function blocks(tokens, depth) {
  return tokens.map((token) => blockNode(token, depth)).filter((node) => node !== null);
}

/** A text that grows, shown as Markdown in `root`. Blocks that have not changed keep their elements, and with them a reader's selection. */
export class MarkdownView {
  #shown = [];
  #definitions = 0;

  constructor(root) {
    this.root = root;
  }

  /** Shows `text`; returns how long that took, ms. */
  show(text) {
    const start = performance.now();
    let tokens;
    try {
      tokens = text.length > MAX_CHARS ? null : Lexer.lex(text, { gfm: true, breaks: true });
    } catch {
      // Nested deeper than the stack: shown as it is.
      tokens = null;
    }
    if (tokens === null) this.#showPlain(text);
    else this.#showTokens(tokens);
    return performance.now() - start;
  }

  #showPlain(text) {
    this.#shown = [];
    this.root.replaceChildren(h("p.raw", { textContent: text }));
  }

  #showTokens(tokens) {
    // A definition changes links in blocks above it.
    const definitions = tokens.filter((token) => token.type === "def").length;
    if (definitions !== this.#definitions) this.#shown = [];
    this.#definitions = definitions;
    const seen = tokens.filter((token) => token.type !== "space" && token.type !== "def");
    let same = 0;
    while (same < this.#shown.length && same < seen.length && this.#shown[same] === seen[same].raw) same++;
    const keep = this.#shown.length === 0 ? 0 : same;
    while (this.root.childNodes.length > keep) this.root.lastChild.remove();
    this.root.append(...seen.slice(keep).map((token) => blockNode(token, 0)));
    this.#shown = seen.map((token) => token.raw);
  }
}
