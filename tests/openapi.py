"""Schemathesis over the OpenAPI document of a running Izar server with a real model.

    python tests/openapi.py IZAR MODEL [EXAMPLES]

Starts `IZAR serve MODEL` on a free port, makes EXAMPLES requests of each kind to each endpoint out of the document, valid ones and
broken ones, and checks every answer: no 5xx, a documented status, content type, headers and schema, no broken request taken for
a valid one, no unknown method taken, and no endpoint open that should ask for a key. Fails with what schemathesis found.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

KEY = "test-key"
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "ignored_auth",
]


def start(izar, model):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = tempfile.TemporaryFile()
    # A short context bounds what an answer takes.
    process = subprocess.Popen(
        [izar, "serve", model, "--port", str(port), "--served-model-name", "smollm2",
         "--max-model-len", "96", "--max-num-seqs", "32", "--api-key", KEY],
        stderr=log)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return process, url, log
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                log.seek(0)
                sys.exit("the server did not become healthy:\n" + log.read().decode())
            time.sleep(0.1)


def feasible(document):
    """The document narrowed to requests that this model and this short context can serve: without it, nearly all that
    are valid by their form are refused for a token id or a length that only the server can know."""
    schemas = document["components"]["schemas"]
    for name in ("ChatCompletionRequest", "CompletionRequest", "TokenizeRequest"):
        properties = schemas[name]["properties"]
        # Rules between fields, which a schema does not state.
        for field in ("min_tokens", "best_of", "top_logprobs", "stream_options", "suffix", "model",
                      "continue_final_message"):
            properties.pop(field, None)
    for name, limits in (("max_tokens", (1, 16)), ("max_completion_tokens", (1, 16)), ("n", (1, 3))):
        for request in ("ChatCompletionRequest", "CompletionRequest"):
            field = schemas[request]["properties"].get(name)
            if field:
                field["minimum"], field["maximum"] = limits

    def narrow(node):
        if isinstance(node, list):
            for item in node:
                narrow(item)
        elif isinstance(node, dict):
            items = node.get("items")
            if isinstance(items, dict) and items.get("type") == "integer" and "minimum" in items:
                items["maximum"] = 1000
                node["maxItems"] = 16
            for value in node.values():
                narrow(value)

    narrow(schemas)
    schemas["CompletionRequest"]["properties"]["logit_bias"]["propertyNames"] = {"pattern": "^[0-9]{1,3}$"}
    schemas["ChatCompletionRequest"]["properties"]["logit_bias"]["propertyNames"] = {"pattern": "^[0-9]{1,3}$"}
    return document


def check(url, document, *flags):
    """Runs schemathesis over the document; returns whether it found nothing."""
    schemathesis = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        run = subprocess.run(
            [schemathesis, "run", file.name, "--url", url, "--header", f"Authorization: Bearer {KEY}",
             "--checks", ",".join(CHECKS), "--seed", "1", "--workers", "4", "--request-timeout", "60",
             "--no-color", *flags],
            env={**os.environ, "COLUMNS": "140"})
    return run.returncode == 0


def main(izar, model, examples="30"):
    process, url, log = start(izar, model)
    try:
        with urllib.request.urlopen(f"{url}/openapi.json", timeout=5) as answer:
            text = answer.read()
        passed = [
            check(url, json.loads(text), "--phases", "examples,coverage,fuzzing", "--mode", "all",
                  "--max-examples", examples),
            check(url, feasible(json.loads(text)), "--phases", "fuzzing", "--mode", "positive",
                  "--max-examples", examples),
        ]
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    log.seek(0)
    text = log.read().decode(errors="replace")
    if "panicked" in text:
        sys.exit("a thread of the server panicked:\n" + text[-4000:])
    if code != 0:
        sys.exit(f"the server left with {code}:\n{text[-4000:]}")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
