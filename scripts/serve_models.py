#!/usr/bin/env python3
"""Serves models of full size from their config.json alone, one after the other, and asks each a few things over HTTP.

    scripts/serve_models.py --izar target/release/izar                    all of model-configs, on a GPU
    scripts/serve_models.py --izar ... --configs fixtures --only qwen3 --device cpu --input 40 --output 8

Weights are made up (`--load-format dummy`), everything else is what `izar serve` does without flags. For each model: seconds
from start to healthy; memory as the server's log has it; four answers at once; then alone, with a prompt of --input tokens, the time
to one token (TTFT) and the time a token after that (TPOT: the time of --output more tokens, shared out), each the median of three.
The floor is what a step must read: the weights that a token goes through, the head, and the KV of the sequence, at --rate.

Prints a table, writes --json, and fails if a model does not serve. Needs nothing but Python.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 60


def floor_bytes(config, context):
    """Bytes in bf16 that a step of one sequence reads at this context length."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv = head_dim * config.get("num_key_value_heads", heads)
    attention = hidden * (2 * head_dim * heads + 2 * kv)
    if experts := config.get("num_experts"):
        ffn = hidden * (experts + 3 * config["moe_intermediate_size"] * config["num_experts_per_tok"])
    else:
        ffn = 3 * hidden * config["intermediate_size"]
    return 2 * (layers * (attention + ffn) + config["vocab_size"] * hidden) + 4 * layers * kv * context


def complete(port, ids, num_tokens):
    """Seconds that one completion took. Fails if it is not of this length."""
    body = {"model": "m", "prompt": ids, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    seconds = time.perf_counter() - begun
    if response.status != 200:
        raise RuntimeError(f"{response.status} {answer[:500]!r}")
    got = json.loads(answer)["usage"]["completion_tokens"]
    if got != num_tokens:
        raise RuntimeError(f"{got} tokens instead of {num_tokens}")
    return seconds


def at_once(port, prompts, num_tokens):
    errors = []

    def one(ids):
        try:
            complete(port, ids, num_tokens)
        except Exception as error:  # noqa: BLE001 - told to the caller, whatever it is
            errors.append(error)

    threads = [threading.Thread(target=one, args=(ids,)) for ids in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"{len(errors)} of {len(prompts)} answers failed: {errors[0]}")


def wait_healthy(port, server, begun):
    while time.perf_counter() - begun < START_LIMIT_S:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return time.perf_counter() - begun
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"not healthy after {START_LIMIT_S} s")


def memory(log):
    """What the log says went where, MiB, and the KV blocks."""
    found = re.search(r"(\d+) MiB of weights, (\d+) KV blocks \((\d+) MiB", log)
    parts = dict(re.findall(r"^  (\S.*?) +(\d+) MiB$", log, re.MULTILINE))
    captured = re.search(r"captured in ([\d.]+) s", log)
    return {
        "weights_mib": int(found[1]), "kv_blocks": int(found[2]), "kv_mib": int(found[3]),
        "parts_mib": {name: int(mib) for name, mib in parts.items()},
        "capture_s": float(captured[1]) if captured else None,
    }


def measure(args, config, port):
    vocab, rng = config["vocab_size"], random.Random(1)
    prompt = lambda length: [rng.randrange(vocab) for _ in range(length)]
    at_once(port, [prompt(args.input // 4 + 7 * i) for i in range(4)], args.output)
    first = statistics.median(complete(port, prompt(args.input), 1) for _ in range(3))
    whole = statistics.median(complete(port, prompt(args.input), 1 + args.output) for _ in range(3))
    floor_ms = 1e3 * floor_bytes(config, args.input + args.output / 2) / args.rate
    tpot_ms = 1e3 * (whole - first) / args.output
    return {"ttft_ms": 1e3 * first, "tpot_ms": tpot_ms, "floor_ms": floor_ms, "of_floor": tpot_ms / floor_ms}


def serve(args, name, config_file, work):
    model = work / name
    model.mkdir()
    shutil.copy(config_file, model / "config.json")
    shutil.copy(args.tokenizer, model / "tokenizer.json")
    config = json.loads(config_file.read_text())
    command = [args.izar, "serve", model, "--load-format", "dummy", "--device", args.device, "--served-model-name", "m",
               "--port", str(args.port), *args.flags]
    log_file = work / f"{name}.log"
    begun = time.perf_counter()
    with log_file.open("w") as log:
        server = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    figures = {"model": name}
    try:
        figures["start_s"] = wait_healthy(args.port, server, begun)
        figures |= memory(log_file.read_text()) | measure(args, config, args.port)
    except Exception as error:  # noqa: BLE001 - one model that fails must not keep the others from running
        figures["error"] = str(error)
        print(log_file.read_text()[-3000:], file=sys.stderr)
    finally:
        server.terminate()
        try:
            figures["exit"] = server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            figures["error"] = "did not stop"
    if figures.get("exit"):
        figures.setdefault("error", f"the server ended with {figures['exit']}")
    return figures


def line(figures):
    if "error" in figures:
        return f"{figures['model']:<15} {figures['error']}"
    return (f"{figures['model']:<15} {figures['start_s']:>7.1f} {figures['weights_mib']:>11} {figures['kv_mib']:>8}"
            f" {16 * figures['kv_blocks']:>9} {figures['ttft_ms']:>8.1f} {figures['tpot_ms']:>8.2f} {figures['floor_ms']:>8.2f}"
            f" {figures['of_floor']:>7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--izar", required=True, help="the binary")
    parser.add_argument("--configs", type=Path, default=ROOT / "model-configs", help="directory of NAME/config.json")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "crates/tokenizer/tests/data/qwen3-small.tokenizer.json")
    parser.add_argument("--only", type=lambda s: s.split(","), help="names, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=18090)
    parser.add_argument("--input", type=int, default=1024)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--rate", type=float, default=4.65e12, help="bytes a second that the device reads")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="last: more flags for `izar serve`")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = args.only or sorted(path.parent.name for path in args.configs.glob("*/config.json"))
    print(f"{'model':<15} {'start s':>7} {'weights MiB':>11} {'KV MiB':>8} {'KV tokens':>9} {'TTFT ms':>8} {'TPOT ms':>8} {'floor':>8}"
          f" {'/ floor':>7}   alone, {args.input} in / {1 + args.output} out", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            results.append(serve(args, name, args.configs / name / "config.json", Path(work)))
            print(line(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any("error" in figures for figures in results) else 0


if __name__ == "__main__":
    sys.exit(main())
