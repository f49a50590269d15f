// A request as a command or a program, to take elsewhere.

const KEY = "$IZAR_API_KEY";

/** Quoted for a POSIX shell. */
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** JSON with characters that one does not see as escapes: a program must be what it looks like. Python reads these escapes, too. */
function json(value, indent) {
  const hidden = /[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return JSON.stringify(value, null, indent).replace(hidden, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Without the page's own wishes about the stream's form. */
function plain(body) {
  const { stream_options: _, ...rest } = body;
  return rest;
}

/** `base` is the address of `/v1/`. */
export function asCurl(base, body, hasKey) {
  return [
    `curl -N ${shell(`${base}chat/completions`)}`,
    "-H 'Content-Type: application/json'",
    ...(hasKey ? [`-H "Authorization: Bearer ${KEY}"`] : []),
    `-d ${shell(json(plain(body), 2))}`,
  ].join(" \\\n  ");
}

/** A JSON value as a Python literal. */
function python(value, indent) {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return json(value);
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]";
    return `[\n${value.map((item) => `${inner}${python(item, inner)},\n`).join("")}${indent}]`;
  }
  const members = Object.entries(value).map(([key, item]) => `${json(key)}: ${python(item, inner)}`);
  return `{${members.join(", ")}}`;
}

/** What the openai package calls by name; everything else goes through `extra_body`. */
const KNOWN = new Set([
  "model", "messages", "temperature", "top_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty", "stop", "logprobs",
  "top_logprobs", "stream",
]);

export function asPython(base, body, hasKey) {
  const entries = Object.entries(plain(body));
  const known = entries.filter(([name]) => KNOWN.has(name)).map(([name, value]) => `    ${name}=${python(value, "    ")},`);
  const extra = Object.fromEntries(entries.filter(([name]) => !KNOWN.has(name)));
  if (Object.keys(extra).length > 0) known.push(`    extra_body=${python(extra, "    ")},`);
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(base)}, api_key=${hasKey ? 'os.environ["IZAR_API_KEY"]' : '"none"'})`,
    "stream = client.chat.completions.create(",
    ...known,
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "print()",
    "",
  ].join("\n");
}
