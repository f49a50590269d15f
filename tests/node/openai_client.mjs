// The openai package for Node against a running Izar server with a real model.
//
//     node openai_client.mjs IZAR MODEL
//
// Starts `IZAR serve MODEL` on a port that the system chooses, runs every test below, and stops it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import OpenAI from "openai";

const KEY = "test-key";
const MODEL = "smollm2";
const QUESTION = [{ role: "user", content: "Name the capital of France." }];
const ANSWER = "The capital of France is Paris.";

/** Starts the server; resolves to its process and its address once it is healthy. */
async function serve(izar, model) {
  const flags = ["--port", "0", "--served-model-name", MODEL, "--api-key", KEY, "--max-num-seqs", "16"];
  const server = spawn(izar, ["serve", model, ...flags], { stdio: ["ignore", "inherit", "pipe"] });
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: server.stderr }).on("line", (line) => {
      console.error(line);
      const found = line.match(/http:\/\/\S+\/v1/);
      if (found) resolve(found[0]);
    });
    server.once("exit", () => reject(new Error("the server did not start")));
    setTimeout(() => reject(new Error("the server did not say where it serves")), 120_000).unref();
  });
  for (let left = 600; left > 0; left--) {
    const health = await fetch(url.replace("/v1", "/health")).catch(() => null);
    if (health?.ok) return { server, url };
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("the server did not become healthy");
}

/** Stops the server; resolves to its exit code. */
function stop(server) {
  return new Promise((resolve) => {
    server.once("exit", (code) => resolve(code));
    server.kill("SIGTERM");
    setTimeout(() => server.kill("SIGKILL"), 60_000).unref();
  });
}

async function metric(url, name) {
  const page = await (await fetch(url.replace("/v1", "/metrics"))).text();
  const samples = page.split("\n").filter((line) => line.startsWith(`${name}{`));
  return samples.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

const tests = {
  async "a chat is answered as fp32 answers it"(client) {
    const answer = await client.chat.completions.create({ model: MODEL, messages: QUESTION, temperature: 0 });
    assert.equal(answer.choices[0].message.content, ANSWER);
    assert.equal(answer.choices[0].finish_reason, "stop");
    const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
    assert.equal(total_tokens, prompt_tokens + completion_tokens);
  },

  async "a stream concatenates to the whole answer, with one usage at its end"(client) {
    const stream = await client.chat.completions.create({
      model: MODEL, messages: QUESTION, temperature: 0, stream: true, stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""), ANSWER);
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
    assert.deepEqual(chunks.map((c) => Boolean(c.usage)), [...chunks.slice(1).map(() => false), true]);
    assert.deepEqual(chunks.at(-1).choices, []);
  },

  async "the stream helper rebuilds the message that was not streamed"(client) {
    const stream = client.chat.completions.stream({ model: MODEL, messages: QUESTION, temperature: 0 });
    const completion = await stream.finalChatCompletion();
    assert.equal(completion.choices[0].message.content, ANSWER);
    assert.equal(completion.choices[0].finish_reason, "stop");
  },

  async "a completion ends before its stop string"(client) {
    const answer = await client.completions.create({
      model: MODEL, prompt: "The capital of France is", temperature: 0, max_tokens: 16, stop: ["\n"],
    });
    assert.equal(answer.choices[0].text, " Paris.");
  },

  async "completions stream, and several prompts keep their order"(client) {
    const ask = { model: MODEL, prompt: ["The capital of France is", "One, two, three,"], temperature: 0, max_tokens: 4 };
    const whole = await client.completions.create(ask);
    const texts = ["", ""];
    for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
      texts[chunk.choices[0].index] += chunk.choices[0].text;
    }
    assert.deepEqual(texts, whole.choices.map((c) => c.text));
  },

  async "log probabilities have an entry for each token"(client) {
    const answer = await client.chat.completions.create({
      model: MODEL, messages: QUESTION, temperature: 0, max_tokens: 3, logprobs: true, top_logprobs: 2,
    });
    const entries = answer.choices[0].logprobs.content;
    assert.equal(entries.length, 3);
    for (const entry of entries) {
      assert.ok(entry.logprob <= 0 && entry.top_logprobs.length === 2);
      assert.equal(entry.top_logprobs[0].token, entry.token);
    }
  },

  async "several choices come with their indices"(client) {
    const answer = await client.chat.completions.create({ model: MODEL, messages: QUESTION, n: 3, temperature: 0 });
    assert.deepEqual(answer.choices.map((c) => [c.index, c.message.content]), [0, 1, 2].map((i) => [i, ANSWER]));
  },

  async "a response is answered whole and in events"(client) {
    const ask = { model: MODEL, input: QUESTION, temperature: 0 };
    const whole = await client.responses.create(ask);
    assert.equal(whole.status, "completed");
    assert.equal(whole.output_text, ANSWER);
    const [kinds, texts] = [[], []];
    for await (const event of await client.responses.create({ ...ask, stream: true })) {
      kinds.push(event.type);
      if (event.type === "response.output_text.delta") texts.push(event.delta);
    }
    assert.deepEqual([kinds[0], kinds.at(-1), texts.join("")], ["response.created", "response.completed", ANSWER]);
  },

  async "structured output is of the schema"(client) {
    const schema = {
      type: "object", properties: { city: { type: "string", maxLength: 20 }, people: { type: "integer", minimum: 0, maximum: 99999999 } },
      required: ["city", "people"], additionalProperties: false,
    };
    const answer = await client.chat.completions.parse({
      model: MODEL, messages: QUESTION, temperature: 0, max_tokens: 80,
      response_format: { type: "json_schema", json_schema: { name: "city", schema, strict: true } },
    });
    const parsed = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(parsed).sort(), ["city", "people"]);
    assert.ok(Number.isInteger(parsed.people));
  },

  async "models are listed and described"(client) {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names, [MODEL]);
    assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  },

  async "errors are of the client's own classes and name their field"(client) {
    const ask = (extra) => client.chat.completions.create({ model: MODEL, messages: QUESTION, ...extra });
    await assert.rejects(ask({ temperature: 9e9 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
    await assert.rejects(ask({ messages: [] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "messages");
    await assert.rejects(ask({ model: "nobody" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(ask({ stream: true, top_p: -1 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "top_p");
    const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: "wrong" });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  },

  async "forty at once are all answered"(client) {
    const ask = () => client.chat.completions.create({ model: MODEL, messages: QUESTION, temperature: 0 });
    const answers = await Promise.all(Array.from({ length: 40 }, ask));
    assert.deepEqual(new Set(answers.map((a) => a.choices[0].message.content)), new Set([ANSWER]));
  },

  async "a client that aborts gives everything back"(client, url) {
    const stream = await client.chat.completions.create({
      model: MODEL, messages: QUESTION, max_tokens: 2000, stream: true, ignore_eos: true,
    });
    for await (const _ of stream) break;
    const names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "izar:ring_slots_in_use"];
    for (let left = 200; ; left--) {
      const held = await Promise.all(names.map((name) => metric(url, name)));
      if (held.every((value) => value === 0)) return;
      assert.ok(left > 0, `still held: ${held}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  },
};

const [izar, model] = process.argv.slice(2);
const { server, url } = await serve(izar, model);
const client = new OpenAI({ baseURL: url, apiKey: KEY, timeout: 120_000 });
let [passed, failed] = [0, 0];
for (const [name, test] of Object.entries(tests)) {
  try {
    await test(client, url);
    passed++;
    console.log(`ok ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAILED ${name}\n${error.stack}`);
  }
}
const code = await stop(server);
if (code !== 0) {
  failed++;
  console.log(`FAILED the server left with ${code} on SIGTERM`);
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
