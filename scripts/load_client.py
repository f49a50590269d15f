#!/usr/bin/env python3
"""Closed-loop load on an OpenAI completions endpoint: TTFT, ITL and tokens/s per concurrency.

    scripts/load_client.py --url http://127.0.0.1:8000 --input 1024 --output 256 --concurrency 1,16,32,64

Prompts are random token ids, all different, so no server can reuse a prefix. Answers are greedy, streamed and of fixed length.
Works with any server of that API that takes `ignore_eos`. Needs nothing but Python.

TTFT: request sent to first chunk with text or a token. ITL: every gap between two such chunks, pooled over requests. Tokens are
counted from the usage that the server reports. The first --warmup requests of a concurrency are not counted.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from urllib.parse import urlsplit


async def complete(address, model, prompt, num_tokens):
    """One streamed completion: (sent, times of chunks, tokens generated)."""
    body = json.dumps({
        "model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }).encode()
    host, port = address
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    sent = time.perf_counter()
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {(await reader.read(2000))!r}")
    times, tokens = [], 0
    while line := await reader.readline():
        at = time.perf_counter()
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("error"):
            raise RuntimeError(str(event["error"]))
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        if event.get("choices") and "text" in event["choices"][0]:
            times.append(at)
    writer.close()
    return sent, times, tokens


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


async def measure(args, address, concurrency, rng):
    num_requests = max(args.min_requests, args.rounds * concurrency)
    prompts = [[rng.randrange(*args.ids) for _ in range(args.input)] for _ in range(num_requests)]
    results = []

    async def worker(queue):
        while queue:
            results.append(await complete(address, args.model, queue.pop(), args.output))

    await asyncio.gather(*(complete(address, args.model, [rng.randrange(*args.ids) for _ in range(64)], 8)
                           for _ in range(min(concurrency, args.warmup))))
    begun = time.perf_counter()
    await asyncio.gather(*(worker(prompts) for _ in range(concurrency)))
    seconds = time.perf_counter() - begun
    ttft = [1e3 * (times[0] - sent) for sent, times, _ in results if times]
    itl = [1e3 * (b - a) for _, times, _ in results for a, b in zip(times, times[1:])]
    tokens = sum(count for _, _, count in results)
    short = sum(count != args.output for _, _, count in results)
    figures = {
        "concurrency": concurrency, "requests": len(results), "seconds": seconds, "output_tokens_per_s": tokens / seconds,
        "ttft_ms_mean": statistics.mean(ttft), "ttft_ms_p50": quantile(ttft, 0.5), "ttft_ms_p99": quantile(ttft, 0.99),
        "itl_ms_p50": quantile(itl, 0.5), "itl_ms_mean": statistics.mean(itl), "itl_ms_p99": quantile(itl, 0.99),
        "of_another_length": short,
    }
    print(f"{concurrency:>5} {figures['output_tokens_per_s']:>9.0f} {figures['ttft_ms_mean']:>10.1f} {figures['ttft_ms_p99']:>9.1f}"
          f" {figures['itl_ms_p50']:>8.3f} {figures['itl_ms_mean']:>8.3f} {figures['itl_ms_p99']:>8.3f} {short:>6}", flush=True)
    return figures


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="m", help="name the server calls the model")
    parser.add_argument("--input", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--concurrency", default="1,16,32,64")
    parser.add_argument("--rounds", type=int, default=2, help="requests for each unit of concurrency")
    parser.add_argument("--min-requests", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--ids", type=lambda s: tuple(map(int, s.split(":"))), default=(1000, 100000), help="range of prompt ids, FROM:TO")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    url = urlsplit(args.url)
    address, rng = (url.hostname, url.port or 80), random.Random(args.seed)
    print(f"{args.label} {args.input} in / {args.output} out\n concurrency tokens/s TTFT mean    TTFT p99 ITL p50 ITL mean ITL p99  short")
    figures = [await measure(args, address, int(c), rng) for c in args.concurrency.split(",")]
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"label": args.label, "input": args.input, "output": args.output, "points": figures}, file, indent=1)
    return 0 if all(point["of_another_length"] == 0 for point in figures) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
