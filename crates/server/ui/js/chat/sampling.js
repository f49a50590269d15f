// The sampling parameters that the page offers, and the part of a request that they make.

import { loadSetting, saveSetting } from "../store.js";

/** `kind` is `number`, `integer`, `lines` or `choice`. Ranges are the API's (openapi.json). */
export const PARAMETERS = [
  { name: "temperature", label: "Temperature", kind: "number", min: 0, max: 2, step: 0.05, hint: "0 is greedy" },
  { name: "top_p", label: "Top p", kind: "number", min: 0, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", kind: "integer", min: -1, max: 2147483647, hint: "0 is all" },
  { name: "min_p", label: "Min p", kind: "number", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", label: "Max tokens", kind: "integer", min: 1, max: 4294967295 },
  { name: "seed", label: "Seed", kind: "integer", min: 0, max: 9007199254740991, hint: "Same seed, same text" },
  { name: "presence_penalty", label: "Presence penalty", kind: "number", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "number", min: 0.01, max: 100, step: 0.01, hint: "1 is none" },
  { name: "min_tokens", label: "Min tokens", kind: "integer", min: 0, max: 4294967295 },
  { name: "stop", label: "Stop strings, one a line", kind: "lines" },
  { name: "thinking", label: "Thinking", kind: "choice", choices: [["", "As the model does"], ["off", "Off"]] },
];

/** The values as typed, by name. Missing or empty: the server's default. */
export const loadSampling = () => loadSetting("sampling", {});
export const saveSampling = (values) => saveSetting("sampling", values);

/** What is wrong with a typed value, or null. */
export function problemWith(parameter, text) {
  if (text.trim() === "" || parameter.kind === "lines" || parameter.kind === "choice") return null;
  const value = Number(text);
  const { min, max, label, kind } = parameter;
  if (!Number.isFinite(value) || value < min || value > max) return `${label} must be between ${min} and ${max}`;
  if (kind === "integer" && !Number.isInteger(value)) return `${label} must be a whole number`;
  return null;
}

/** The first thing that is wrong with `values`: `{parameter, problem}`, or null. */
export function firstProblem(values) {
  for (const parameter of PARAMETERS) {
    const problem = problemWith(parameter, values[parameter.name] ?? "");
    if (problem !== null) return { parameter, problem };
  }
  return null;
}

/** The request's members for valid `values`. */
export function samplingOf(values) {
  const members = {};
  for (const { name, kind } of PARAMETERS) {
    const text = values[name] ?? "";
    if (text.trim() === "") continue;
    if (name === "thinking") members.chat_template_kwargs = { enable_thinking: false };
    else if (kind === "lines") members[name] = text.split("\n").filter((line) => line !== "");
    else members[name] = Number(text);
  }
  return members;
}
