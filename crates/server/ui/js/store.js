// What the browser keeps: settings in localStorage, conversations in IndexedDB, the API key where the person wants it.
// Without storage (a private window, a full disk) everything works and is forgotten with the tab.

const PREFIX = "izar.";
const memory = new Map();

function read(storage, name) {
  try {
    return storage().getItem(PREFIX + name);
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    if (value === null) storage().removeItem(PREFIX + name);
    else storage().setItem(PREFIX + name, value);
  } catch {
    // Kept in memory only.
  }
}

const local = () => localStorage;
const session = () => sessionStorage;

/** A setting, or `fallback` where there is none that parses. */
export function loadSetting(name, fallback) {
  const text = memory.get(name) ?? read(local, name);
  if (text === null || text === undefined) return fallback;
  try {
    return JSON.parse(text);
  } catch {
    return fallback;
  }
}

export function saveSetting(name, value) {
  const text = JSON.stringify(value);
  memory.set(name, text);
  write(local, name, text);
}

let key = read(session, "key") ?? read(local, "key") ?? "";

/** The API key, or an empty string. */
export const apiKey = () => key;

/** Whether the key outlives the tab. */
export const keyIsRemembered = () => read(local, "key") !== null;

/** Keeps the key for this tab, or for this browser. An empty one is forgotten. */
export function setApiKey(value, remember) {
  key = value;
  write(session, "key", value && !remember ? value : null);
  write(local, "key", value && remember ? value : null);
}

/** Theme of the page: `auto`, `light` or `dark`. Stored bare, for theme.js. */
export const loadTheme = () => read(local, "theme") ?? "auto";

export function saveTheme(theme) {
  write(local, "theme", theme === "auto" ? null : theme);
}

// Conversations.

const fallback = new Map();
let opening = null;

function database() {
  opening ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("izar", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
      request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opening;
}

async function transact(mode, act) {
  const db = await database();
  if (db === null) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction("conversations", mode);
    const request = act(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** All conversations, the one used last first. */
export async function loadConversations() {
  const all = (await transact("readonly", (store) => store.getAll()).catch(() => undefined)) ?? [...fallback.values()];
  return all.sort((a, b) => b.updated - a.updated);
}

/** Keeps a conversation. Rejects where the browser has no room. */
export async function saveConversation(conversation) {
  fallback.set(conversation.id, conversation);
  await transact("readwrite", (store) => store.put(conversation));
}

export async function deleteConversation(id) {
  fallback.delete(id);
  await transact("readwrite", (store) => store.delete(id));
}
