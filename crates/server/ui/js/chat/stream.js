// One answer: the request for it, and reading it as it is written.

import { Failure, failureInStream, request } from "../api.js";
import { events } from "../sse.js";
import { promptOf } from "./conversation.js";
import { samplingOf } from "./sampling.js";

const TOP_LOGPROBS = 5;

/**
 * The body of the request for what follows the first `count` messages. `continues`: the last of them is an answer to be gone on with.
 * It is what "copy as" shows: the page itself sends it with the token count on every event.
 */
export function requestFor(conversation, count, { model, sampling, logprobs, continues = false }) {
  return {
    ...(model ? { model } : {}),
    messages: promptOf(conversation, count),
    ...samplingOf(sampling),
    ...(logprobs ? { logprobs: true, top_logprobs: TOP_LOGPROBS } : {}),
    ...(continues ? { add_generation_prompt: false, continue_final_message: true } : {}),
    stream: true,
    stream_options: { include_usage: true },
  };
}

function takeToolCalls(answer, pieces) {
  for (const { index, function: piece } of pieces) {
    const call = (answer.toolCalls[index] ??= { name: "", arguments: "" });
    call.name += piece?.name ?? "";
    call.arguments += piece?.arguments ?? "";
  }
}

function takeTokens(answer, scores) {
  answer.tokens ??= [];
  for (const { token, logprob, top_logprobs: top } of scores) {
    answer.tokens.push({ text: token, logprob, top: (top ?? []).map((other) => [other.token, other.logprob]) });
  }
}

function takeChoice(answer, choice) {
  const { delta = {} } = choice;
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  if (delta.tool_calls) takeToolCalls(answer, delta.tool_calls);
  if (choice.logprobs?.content) takeTokens(answer, choice.logprobs.content);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
}

/** Measures an answer by this browser's clock. */
class Stopwatch {
  #sent = performance.now();
  #first = null;
  #last = null;

  text() {
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  /** TTFT: sent to first text. Speed: the tokens after the first over the time after the first. */
  read(usage) {
    const tokens = usage?.completion_tokens ?? 0;
    const seconds = this.#first === null ? 0 : (this.#last - this.#first) / 1000;
    return {
      ttftMs: this.#first === null ? null : this.#first - this.#sent,
      tokens,
      tokensPerSecond: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
      promptTokens: usage?.prompt_tokens ?? null,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? null,
    };
  }
}

/**
 * Sends `body` and writes what comes into `answer`, calling `changed` for every event. Resolves when the answer has ended, in whatever way:
 * `answer.finish` or `answer.error` says how.
 */
export async function streamInto(answer, body, signal, changed) {
  const watch = new Stopwatch();
  const sent = { ...body, stream_options: { include_usage: true, continuous_usage_stats: true } };
  try {
    const response = await request("v1/chat/completions", { body: sent, signal });
    let whole = false;
    for await (const { event, data } of events(response.body)) {
      if (data === "[DONE]") {
        whole = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (event === "error" || chunk.error) throw failureInStream(chunk.error);
      if (chunk.choices?.[0] && takeChoice(answer, chunk.choices[0])) watch.text();
      if (chunk.model) answer.model = chunk.model;
      answer.stats = watch.read(chunk.usage);
      changed();
    }
    if (!whole) throw new Failure("network", "the connection broke before the answer was whole");
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else answer.error = describe(error);
  }
}

/** A failure as it is kept with the answer. */
function describe(error) {
  if (error instanceof Failure) {
    const { kind, message, status, retryAfter } = error;
    return { kind, message, status, retryAfter };
  }
  // A body that breaks off throws a TypeError; what is no JSON a SyntaxError.
  const broken = error instanceof TypeError;
  return {
    kind: broken ? "network" : "refused",
    message: broken ? "the connection broke before the answer was whole" : "the server sent something that is no answer",
    status: null,
    retryAfter: null,
  };
}
