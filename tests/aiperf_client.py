"""NVIDIA's load generator aiperf against a running Izar with a real model: it must run clean.

    python tests/aiperf_client.py AIPERF IZAR MODEL TOKENIZER_JSON

Runs chat and completions, streamed and not, and ends with an error if aiperf does, or if it counts one failed request.
TOKENIZER_JSON makes up the prompts; tokens are counted by the server.
"""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = "smollm2"
NUM_REQUESTS = 24


def serve(izar, model):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([izar, "serve", model, "--port", str(port), "--served-model-name", MODEL,
                                "--max-num-seqs", "8", "--log", "warn"])
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise SystemExit("the server did not become healthy")


def profile(aiperf, url, tokenizer, endpoint, streams, out):
    command = [
        aiperf, "profile", "--model", MODEL, "--url", url, "--endpoint-type", endpoint, "--tokenizer", str(tokenizer),
        "--concurrency", "6", "--request-count", str(NUM_REQUESTS), "--synthetic-input-tokens-mean", "48",
        "--output-tokens-mean", "12", "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
        "--random-seed", "7", "--ui", "none", "--output-artifact-dir", str(out),
    ] + (["--streaming"] if streams else [])
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    reports = list(pathlib.Path(out).rglob("profile_export_aiperf.json"))
    if done.returncode != 0 or not reports:
        raise SystemExit(f"aiperf left with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    report = json.loads(reports[0].read_text())
    answered = report["request_count"]["avg"]
    failed = (report.get("error_request_count") or {}).get("avg", 0)
    ok = answered == NUM_REQUESTS and not failed and not report.get("error_summary")
    names = ["request_throughput", "output_token_throughput", "time_to_first_token", "inter_token_latency"]
    told = ", ".join(f"{n} {report[n]['avg']:.1f} {report[n]['unit']}" for n in names if report.get(n))
    print(f"{'ok' if ok else 'FAILED'} {endpoint} {'streamed' if streams else 'whole'}: {answered:.0f} answered, {failed:.0f} failed; {told}",
          flush=True)
    return ok


def main():
    aiperf, izar, model, tokenizer_json = sys.argv[1:]
    process, url = serve(izar, model)
    results = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            tokenizer = pathlib.Path(scratch, "tokenizer")
            tokenizer.mkdir()
            shutil.copy(tokenizer_json, tokenizer / "tokenizer.json")
            (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
            for endpoint in ["chat", "completions"]:
                for streams in [True, False]:
                    out = pathlib.Path(scratch, f"{endpoint}-{streams}")
                    results.append(profile(aiperf, url, tokenizer, endpoint, streams, out))
        process.send_signal(signal.SIGTERM)
        results.append(process.wait(timeout=60) == 0)
    finally:
        process.kill()
    print(f"{sum(results)} passed, {results.count(False)} failed")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
