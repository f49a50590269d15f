// The page in headless Chromium, served by a real server with a real model.
//
//     node run.mjs IZAR MODEL MOCK_SERVER PYTHON
//
// IZAR and MOCK_SERVER are the programs, MODEL is a model's file, PYTHON has the openai package. Chromium is /usr/bin/chromium, or
// IZAR_CHROMIUM. A test fails on any error in the console, any violation of the policy and any request to elsewhere.

import { createServer } from "node:net";
import { after, before } from "node:test";
import { accessTests } from "./access.mjs";
import { buttonTests } from "./buttons.mjs";
import { chatTests } from "./chat.mjs";
import { engineTests } from "./engine.mjs";
import { hostileTests } from "./hostile.mjs";
import { KEY, MODEL, Server, closeBrowser, hostileFile } from "./support.mjs";
import { unitTests } from "./units.mjs";

const MAX_NUM_SEQS = 4;

const [izar, model, mockServer, python] = process.argv.slice(2);
if (python === undefined) {
  console.error("usage: node run.mjs IZAR MODEL MOCK_SERVER PYTHON");
  process.exit(2);
}

const file = hostileFile(model);
const flags = (port) => [
  "serve", file, "--port", String(port), "--served-model-name", MODEL, "--api-key", KEY,
  "--max-num-seqs", String(MAX_NUM_SEQS), "--shutdown-timeout", "2", "--seed", "1",
];
const server = new Server(izar, flags);
const mock = new Server(mockServer, (port) => [String(port)]);

/** A port that is free now, for a program that does not choose its own. */
function freePort() {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

before(async () => {
  mock.port = await freePort();
  await Promise.all([server.start(), mock.start()]);
});
after(async () => {
  await closeBrowser();
  await Promise.all([server.stop(), mock.stop()]);
});

unitTests();
buttonTests(server);
hostileTests(server);
accessTests(server);
engineTests(server, mock, MAX_NUM_SEQS);
chatTests(server, python);
