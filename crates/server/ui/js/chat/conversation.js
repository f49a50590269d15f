// A conversation: what is kept of it, and what of it goes to the model.
//
//   conversation  {id, title, created, updated, system, messages}
//   question      {id, role: "user", content}
//   answer        {id, role: "assistant", content, reasoning, toolCalls, model, finish, error, stats, tokens, showTokens}
//
// `finish` is null while an answer is being written; `stopped` where the person stopped it and `interrupted` where the tab closed, beside
// the API's own reasons. `tokens` holds what log probabilities came: [{text, logprob, top: [[text, logprob]]}].

const TITLE_CHARS = 60;

export const newId = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
};

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, system, messages: [] };
}

export const newQuestion = (content) => ({ id: newId(), role: "user", content });

export function newAnswer(model, showTokens) {
  return {
    id: newId(), role: "assistant", content: "", reasoning: "", toolCalls: [], model, finish: null, error: null, stats: null,
    tokens: null, showTokens,
  };
}

/** The first question's beginning names the conversation. */
export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  const line = (first?.content ?? "").trim().split("\n")[0];
  if (line === "") return "New chat";
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1)}…` : line;
}

/** Marks answers that nobody writes any more: the tab that read them is gone. */
export function settle(conversation) {
  for (const message of conversation.messages) {
    if (message.role === "assistant" && message.finish === null && message.error === null) message.finish = "interrupted";
  }
  return conversation;
}

/** The `messages` of a request that asks for what follows the first `count` messages. */
export function promptOf(conversation, count = conversation.messages.length) {
  const spoken = conversation.messages
    .slice(0, count)
    .filter((message) => message.role === "user" || message.content !== "")
    .map(({ role, content }) => ({ role, content }));
  const system = conversation.system.trim();
  return system === "" ? spoken : [{ role: "system", content: system }, ...spoken];
}
