// The page: the bar above, and which view is in front. `#/chat` and `#/engine` are its addresses.

import { ChatView } from "./chat/view.js";
import { Connection } from "./connection.js";
import { setIcon } from "./dom.js";
import { keyDialog } from "./key_dialog.js";
import { loadTheme, saveTheme } from "./store.js";

const element = (id) => document.getElementById(id);

const connection = new Connection();
const views = new Map();
let engine = null;

// Theme: the system's, light, dark.

const THEMES = { auto: ["auto", "Theme: as the system"], light: ["sun", "Theme: light"], dark: ["moon", "Theme: dark"] };

function showTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setIcon(element("theme-button"), ...THEMES[theme]);
  dispatchEvent(new Event("themechange"));
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const theme = names[(names.indexOf(loadTheme()) + 1) % names.length];
  saveTheme(theme);
  showTheme(loadTheme());
}

// The server's state.

function showConnection() {
  const { state, text, model } = connection;
  element("status").dataset.state = state;
  element("status-text").textContent = text;
  element("model-name").textContent = model?.id ?? "";
  element("model-name").title = model?.id ?? "";
  document.title = model ? `${model.id} · Izar` : "Izar";
}

// Views.

async function engineView() {
  // Charts are fetched once somebody wants to see them.
  const { EngineView } = await import("./engine/view.js");
  engine ??= new EngineView(element("engine"), connection, askKey);
  return engine;
}

async function route() {
  const name = location.hash === "#/engine" ? "engine" : "chat";
  for (const section of document.querySelectorAll(".view")) section.hidden = section.id !== name;
  for (const tab of document.querySelectorAll(".tabs a")) {
    if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  if (name === "engine" && !views.has("engine")) views.set("engine", await engineView());
  for (const [other, view] of views) if (other !== name) view.leave?.();
  if (location.hash === "#/engine" || name === "chat") views.get(name).enter();
}

const askKey = keyDialog(element("key-dialog"), () => {
  connection.keyChanged();
  engine?.keyChanged();
});

setIcon(element("key-button"), "key", "API key");
element("key-button").addEventListener("click", askKey);
element("theme-button").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address belongs to the views.
  event.preventDefault();
  element("main").focus();
});
connection.addEventListener("change", showConnection);

showTheme(loadTheme());
const chat = new ChatView(element("chat"), connection, askKey);
views.set("chat", chat);
await Promise.all([chat.start(), connection.start()]);
showConnection();
addEventListener("hashchange", route);
await route();
