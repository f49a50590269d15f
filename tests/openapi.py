"""Schemathesis over the OpenAPI document of the front end, in front of an engine that computes nothing.

    python tests/openapi.py MOCK_SERVER [EXAMPLES]

Starts `MOCK_SERVER` (crates/server/examples/mock_server.rs) on a free port, makes EXAMPLES requests of each kind to each endpoint out
of the document, valid ones and broken ones, and checks every answer: no 5xx, a documented status, content type, headers and schema, no
broken request taken for a valid one, no unknown method taken, and no endpoint open that should ask for a key. Fails with what
schemathesis found.
"""

import copy
import json
import os
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


def start(server):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = tempfile.TemporaryFile()
    process = subprocess.Popen([server, str(port), KEY], stderr=log)
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
    """The document narrowed to requests that the mock's few tokens and short context can serve: without it, nearly all that
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
                items["maximum"] = 200
                node["maxItems"] = 16
            for value in node.values():
                narrow(value)

    narrow(schemas)
    schemas["CompletionRequest"]["properties"]["logit_bias"]["propertyNames"] = {"pattern": "^1?[0-9]{1,2}$"}
    schemas["ChatCompletionRequest"]["properties"]["logit_bias"]["propertyNames"] = {"pattern": "^1?[0-9]{1,2}$"}
    return document


def check(url, document, *flags):
    """Runs schemathesis over the document; returns whether it found nothing."""
    schemathesis = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    # One worker: Python's parser, which the generator uses to describe itself, counts its depth for all threads together
    # before Python 3.12.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "openapi.json")
        with open(path, "w") as file:
            json.dump(document, file)
        run = subprocess.run(
            [schemathesis, "run", path, "--url", url, "--header", f"Authorization: Bearer {KEY}",
             "--checks", ",".join(CHECKS), "--seed", "1", "--workers", "1", "--request-timeout", "60",
             "--no-color", *flags],
            env={**os.environ, "COLUMNS": "140"}, cwd=folder)
    return run.returncode == 0


def main(server, examples="30"):
    process, url, log = start(server)
    try:
        with urllib.request.urlopen(f"{url}/openapi.json", timeout=5) as answer:
            document = json.load(answer)
        # A stream without an end: no answer to be checked as a whole.
        del document["paths"]["/izar/stats"]
        passed = [
            check(url, document, "--phases", "examples,coverage,fuzzing", "--mode", "all",
                  "--max-examples", examples),
            check(url, feasible(copy.deepcopy(document)), "--phases", "fuzzing", "--mode", "positive",
                  "--max-examples", examples),
        ]
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            assert answer.status == 200
    finally:
        process.kill()
        process.wait()
    log.seek(0)
    text = log.read().decode(errors="replace")
    if "panicked" in text:
        sys.exit("a thread of the server panicked:\n" + text[-4000:])
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
