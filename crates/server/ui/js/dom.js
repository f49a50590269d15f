// Builds elements. Text only ever becomes a text node: nothing on this page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element of `tag` (`"div.some.class"`) with properties and children. In `props`, `on` holds listeners, `data` the data-* attributes
 * and `attrs` other attributes; everything else is set as a property. Children are nodes or strings; null ones are left out.
 */
export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length > 0) element.className = classes.join(" ");
  const { on = {}, data = {}, attrs = {}, ...rest } = props;
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  for (const [key, value] of Object.entries(data)) element.dataset[key] = value;
  for (const [key, value] of Object.entries(attrs)) if (value !== null && value !== undefined) element.setAttribute(key, value);
  Object.assign(element, rest);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const PATHS = {
  key: ["M15 9a4 4 0 1 1-4-4 4 4 0 0 1 4 4Z M8 12l-5 5v3h3v-2h2v-2h2"],
  sun: ["M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z M12 2v2 M12 20v2 M2 12h2 M20 12h2 M4.9 4.9l1.4 1.4 M17.7 17.7l1.4 1.4 M4.9 19.1l1.4-1.4 M17.7 6.3l1.4-1.4"],
  moon: ["M20 14.5A8.5 8.5 0 1 1 9.5 4a6.8 6.8 0 0 0 10.5 10.5Z"],
  auto: ["M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Z M12 3v18 M12 7.5h6.5 M12 12h9 M12 16.5h6.5"],
  menu: ["M4 7h16 M4 12h16 M4 17h16"],
  plus: ["M12 5v14 M5 12h14"],
  sliders: ["M4 8h8 M18 8h2 M15 5.5v5 M4 16h2 M12 16h8 M9 13.5v5"],
  copy: ["M9 9h10v11H9Z M5 15V4h10"],
  edit: ["M4 20h4L19 9l-4-4L4 16Z"],
  redo: ["M19 12a7 7 0 1 1-2.2-5.1 M19 3v5h-5"],
  trash: ["M4 7h16 M9 7V4h6v3 M6 7l1 13h10l1-13"],
  send: ["M12 19V5 M6 11l6-6 6 6"],
  stop: ["M7 7h10v10H7Z"],
  close: ["M6 6l12 12 M18 6L6 18"],
  code: ["M8 7l-5 5 5 5 M16 7l5 5-5 5"],
  palette: ["M4 6h6 M14 6h6 M4 12h3 M11 12h9 M4 18h9 M17 18h3"],
  more: ["M4 12h16 M14 6l6 6-6 6"],
  down: ["M12 5v14 M6 13l6 6 6-6"],
};

/** A picture that says nothing by itself: the button around it carries the name. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  for (const d of PATHS[name]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

/** Gives a button a picture and a name. */
export function setIcon(button, name, label) {
  button.replaceChildren(icon(name));
  button.setAttribute("aria-label", label);
  button.title = label;
}

/** A button that shows a picture only. */
export function iconButton(name, label, onClick, attrs = {}) {
  const button = h("button.icon-button", { type: "button", on: { click: onClick }, attrs });
  setIcon(button, name, label);
  return button;
}

/** A button with a text. */
export function textButton(label, onClick, kind = "") {
  const button = h("button.button", { type: "button", textContent: label, on: { click: onClick } });
  if (kind) button.classList.add(kind);
  return button;
}

/** Says something for a while; `action` is `{label, run}`. */
export function toast(text, action = null) {
  const close = () => box.remove();
  const button = action && h("button", { type: "button", textContent: action.label, on: { click: () => { close(); action.run(); } } });
  const box = h("div.toast", {}, h("span", { textContent: text }), button);
  const stack = document.getElementById("toasts");
  while (stack.children.length > 2) stack.firstChild.remove();
  stack.append(box);
  setTimeout(close, action ? 8000 : 3500);
}

/** Copies and says so. */
export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`);
  } catch {
    // Over plain HTTP from another machine there is no clipboard API; a selection can always be copied.
    const area = h("textarea.sr-only", { value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    toast(done ? `${what} copied` : "The browser does not let this page copy");
  }
}
