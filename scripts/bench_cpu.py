"""Izar's CPU engine beside llama.cpp on one GGUF file; see scripts/bench-cpu.

Izar is measured from outside, through its HTTP API with non-streaming requests, so that tokenizing,
scheduling, the ring and HTTP are all inside its figures. llama.cpp is measured from inside, through
llama_decode on prepared batches with nothing else in the loop: its best case.
Rounds alternate between the two; figures are medians.
"""

import ctypes
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import llama_cpp

THREADS = len(os.sched_getaffinity(0))
DECODE = 128  # tokens generated per stream
PREFILL = 512  # prompt tokens
STREAMS = 16
VOCAB_LIMIT = 40000


def prompt(rng, length):
    return [rng.randrange(1000, VOCAB_LIMIT) for _ in range(length)]


class Llama:
    """llama.cpp driven through its C API: unified KV cache, all sequences in one batch."""

    def __init__(self, path):
        llama_cpp.llama_backend_init()
        self.log = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.log, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params())
        p = llama_cpp.llama_context_default_params()
        p.n_ctx = 8192
        p.n_batch = p.n_ubatch = 512
        p.n_seq_max = STREAMS
        p.n_threads = p.n_threads_batch = THREADS
        p.kv_unified = True
        self.ctx = llama_cpp.llama_init_from_model(self.model, p)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(PREFILL, 0, 1)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)

    def decode(self, rows):
        """rows: (token, position, sequence, wants logits)"""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, pos, seq, logits) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, logits
            b.seq_id[i][0] = seq
        assert llama_cpp.llama_decode(self.ctx, b) == 0

    def argmax(self, i):
        logits = llama_cpp.llama_get_logits_ith(self.ctx, i)
        return llama_cpp.llama_sampler_sample(self.greedy, self.ctx, i) if logits else 0

    def generate(self, prompts):
        """Tokens per second of greedy generation after the prompts are in."""
        chain = llama_cpp.llama_sampler_init_greedy()
        self.greedy = chain
        self.clear()
        last = []
        for s, ids in enumerate(prompts):
            self.decode([(t, i, s, i == len(ids) - 1) for i, t in enumerate(ids)])
            last.append(self.argmax(len(ids) - 1))
        start = time.perf_counter()
        for step in range(DECODE - 1):
            self.decode([(last[s], len(ids) + step, s, True) for s, ids in enumerate(prompts)])
            last = [self.argmax(s) for s in range(len(prompts))]
        took = time.perf_counter() - start
        llama_cpp.llama_sampler_free(chain)
        return (DECODE - 1) * len(prompts) / took

    def prefill(self, ids):
        self.clear()
        start = time.perf_counter()
        self.decode([(t, i, 0, i == len(ids) - 1) for i, t in enumerate(ids)])
        llama_cpp.llama_synchronize(self.ctx)
        return len(ids) / (time.perf_counter() - start)


class Izar:
    def __init__(self, binary, model):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [binary, "serve", model, "--host", "127.0.0.1", "--port", str(port),
             "--max-num-seqs", str(STREAMS), "--no-enable-prefix-caching"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        with urllib.request.urlopen(self.url + "/v1/models", timeout=5) as r:
            self.name = json.load(r)["data"][0]["id"]

    def complete(self, ids, tokens):
        body = {"model": self.name, "prompt": ids, "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as r:
            usage = json.load(r)["usage"]
        assert usage["completion_tokens"] == tokens

    def timed(self, prompts, tokens):
        threads = [threading.Thread(target=self.complete, args=(p, tokens)) for p in prompts]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return time.perf_counter() - start

    def generate(self, prompts):
        """Tokens per second after the first: the time of one token is taken off."""
        first = self.timed(prompts, 1)
        return (DECODE - 1) * len(prompts) / (self.timed(prompts, DECODE) - first)

    def prefill(self, ids):
        return len(ids) / self.timed([ids], 1)

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup") as f:
            return {k.rstrip(":"): int(v) * 1024 for k, v, *_ in (l.split() for l in f.readlines()[1:])}


def main():
    binary, model, rounds, out = sys.argv[1:]
    rng = random.Random(1)
    one = [prompt(rng, 16)]
    many = [prompt(rng, 16) for _ in range(STREAMS)]
    llama, izar = Llama(model), Izar(binary, model)
    cases = [
        ("decode, 1 stream", lambda e: e.generate(one), 0.7),
        (f"decode, {STREAMS} streams", lambda e: e.generate(many), 1.0),
        (f"prefill, {PREFILL} tokens", lambda e: e.prefill(prompt(rng, PREFILL)), 0.7),
    ]
    results = []
    try:
        for name, case, bar in cases:
            figures = {"llama.cpp": [], "izar": []}
            for _ in range(int(rounds) + 1):
                figures["llama.cpp"].append(case(llama))
                figures["izar"].append(case(izar))
            medians = {k: statistics.median(v[1:]) for k, v in figures.items()}
            results.append({"case": name, "bar": bar, "rounds": figures, **medians,
                            "ratio": medians["izar"] / medians["llama.cpp"]})
        memory = izar.rss_bytes()
    finally:
        izar.process.terminate()
        izar.process.wait()
    size = os.path.getsize(model)
    with open("/proc/cpuinfo") as f:
        cpu = next(l.split(":")[1].strip() for l in f if l.startswith("model name"))
    print(f"{cpu}, {THREADS} cores, {platform.system()}; {os.path.basename(model)}, {size / 1e6:.0f} MB")
    print(f"llama.cpp: {llama_cpp.llama_print_system_info().decode().strip()}\n")
    print("| tokens/s | llama.cpp | Izar | ratio | bar |\n|---|---|---|---|---|")
    for r in results:
        print(f"| {r['case']} | {r['llama.cpp']:.0f} | {r['izar']:.0f} | {r['ratio']:.2f} | {r['bar']} |")
    print(f"\nIzar's memory after the run: {memory['Rss'] / 1e6:.0f} MB resident"
          f" ({memory['Anonymous'] / 1e6:.0f} MB anonymous)")
    with open(out, "w") as f:
        json.dump({"cpu": cpu, "threads": THREADS, "model_bytes": size, "results": results,
                   "memory": memory}, f, indent=1)


if __name__ == "__main__":
    main()
