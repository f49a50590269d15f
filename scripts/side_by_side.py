#!/usr/bin/env python3
"""Izar beside another server of the same API: same model, same machine, same client, one after the other.

    scripts/side_by_side.py --model MODEL --izar target/release/izar \\
        --peer 'vllm serve {model} --served-model-name m --port {port} --load-format dummy --max-model-len 4096 --no-enable-prefix-caching'

Each server is started, waited for (`/health`), driven with load_client.py and stopped. Prints what the client saw of both and the
peer's figure over Izar's or the reverse, so that a ratio above 1 is always Izar's advantage; --json gets all of it.
--izar-flags replaces Izar's flags. --server-cpus and --client-cpus keep client and server off each other's cores (taskset).
Needs nothing but Python.
"""

import argparse
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
IZAR_FLAGS = "--load-format dummy --max-model-len 4096 --no-enable-prefix-caching"
# Key of load_client.py's figures, whether larger is better, decimals.
FIGURES = [("output_tokens_per_s", True, 0), ("ttft_ms_mean", False, 1), ("ttft_ms_p99", False, 1),
           ("itl_ms_p50", False, 3), ("itl_ms_mean", False, 3), ("itl_ms_p99", False, 3)]


def pinned(command, cpus):
    return ["taskset", "-c", cpus, *command] if cpus else command


def is_healthy(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def wait_healthy(port, server, begun, limit_s):
    while time.monotonic() - begun < limit_s:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        if is_healthy(port):
            return time.monotonic() - begun
        time.sleep(0.05)
    raise RuntimeError(f"not healthy after {limit_s:.0f} s")


def stop(server):
    """Ends the server's whole session; its workers may outlive it."""
    for kind, wait_s in [(signal.SIGTERM, 30), (signal.SIGKILL, 10)]:
        try:
            os.killpg(server.pid, kind)
        except ProcessLookupError:
            return
        try:
            server.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            continue
        for _ in range(10 * wait_s):
            try:
                os.killpg(server.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)


def drive(args, label, command):
    """Figures of one server, or why there are none."""
    if is_healthy(args.port):
        return {"label": label, "error": f"something serves on port {args.port} already"}
    figures = {"label": label, "command": shlex.join(command)}
    client_json = args.out / f"{label}.client.json"
    client = [sys.executable, str(HERE / "load_client.py"), "--url", f"http://127.0.0.1:{args.port}", "--label", label,
              "--input", str(args.input), "--output", str(args.output), "--concurrency", args.concurrency,
              "--ids", args.ids, "--json", str(client_json)]
    begun, server = time.monotonic(), None
    try:
        with (args.out / f"{label}.log").open("w") as log:
            server = subprocess.Popen(pinned(command, args.server_cpus), stdout=log, stderr=log, start_new_session=True)
        figures["start_s"] = wait_healthy(args.port, server, begun, args.start_limit)
        print(f"{label}: healthy after {figures['start_s']:.1f} s", flush=True)
        subprocess.run(pinned(client, args.client_cpus), check=True, timeout=args.client_limit)
        figures["points"] = json.loads(client_json.read_text())["points"]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        figures["error"] = str(error)
        print(f"{label}: {error}\n{(args.out / f'{label}.log').read_text()[-3000:]}", flush=True)
    finally:
        if server:
            stop(server)
    figures["seconds"] = time.monotonic() - begun
    print(f"{label}: {figures['seconds']:.0f} s in all", flush=True)
    return figures


def compare(izar, peer):
    """A row for each concurrency and figure: Izar's, the peer's, how many times better Izar is."""
    peers = {point["concurrency"]: point for point in peer["points"]}
    rows = []
    for point in izar["points"]:
        other = peers[point["concurrency"]]
        for key, larger_is_better, _ in FIGURES:
            a, b = point[key], other[key]
            rows.append({"concurrency": point["concurrency"], "figure": key, "izar": a, "peer": b,
                         "times_better": a / b if larger_is_better else b / a})
    return rows


def show(rows):
    decimals = {key: places for key, _, places in FIGURES}
    print(f"{'concurrency':>11} {'':<20} {'izar':>10} {'peer':>10} {'better':>8}")
    for row in rows:
        places = decimals[row["figure"]]
        print(f"{row['concurrency']:>11} {row['figure']:<20} {row['izar']:>10.{places}f} {row['peer']:>10.{places}f}"
              f" {row['times_better']:>7.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--izar", required=True, help="the binary")
    parser.add_argument("--izar-flags", default=IZAR_FLAGS)
    parser.add_argument("--peer", required=True, help="its command; {model} and {port} are replaced")
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument("--input", type=int, default=1024)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--concurrency", default="1,16,32,64")
    parser.add_argument("--ids", default="1000:100000", help="range of prompt ids")
    parser.add_argument("--server-cpus", help="as taskset takes them")
    parser.add_argument("--client-cpus")
    parser.add_argument("--start-limit", type=float, default=420, help="seconds")
    parser.add_argument("--client-limit", type=float, default=180, help="seconds")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for logs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    izar = [args.izar, "serve", args.model, "--served-model-name", "m", "--port", str(args.port), *shlex.split(args.izar_flags)]
    peer = shlex.split(args.peer.format(model=args.model, port=args.port))
    results = {"model": args.model, "servers": [drive(args, "izar", izar), drive(args, "peer", peer)]}
    complete = all("error" not in figures for figures in results["servers"])
    if complete:
        results["comparison"] = compare(*results["servers"])
        show(results["comparison"])
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
