"""Mixed traffic against a running Izar with a real model, for as long as is asked, with books kept on both sides.

    python tests/soak.py IZAR MODEL [--minutes 30] [--seed 1]

In every cycle clients of all kinds run side by side (whole and streamed, chat and completions, several choices, stop strings, log
probabilities, bad requests, clients that leave in every phase, bursts of ten times the capacity). Then the server must come to
rest: nothing running, waiting, held in the ring or in the KV cache, no connection left; its counters must be what the clients saw (exactly
for a round in which nobody leaves, and within what those who left may account for over all); and it must give a known answer. Over all
cycles its anonymous memory must be flat. Ends with an error otherwise.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time

MAX_NUM_SEQS = 8
CYCLE_SECONDS = 90
NUM_CLIENTS = 12
MAX_QUEUED = 32
BURST = 10 * MAX_NUM_SEQS
PROBE = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
WORDS = ("river hill town barley spring snow water farmers sheep mill wheel grain children light swallows inn "
         "accordion frost pool miller daughter door chalk é日😀 STOP 1234 {} \n").split(" ")
GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
          "izar:ring_slots_in_use", "izar:http_requests_in_flight"]
# Anonymous memory that may come over the whole run beside noise: the allocator's own untidiness.
MEMORY_SLACK_MIB = 6.0
# Seconds that anything may take on a slow and busy machine.
PATIENCE = 900


class Failure(Exception):
    """The server did something it must not do."""


class Connection:
    """One request on a connection of its own."""

    def __init__(self, port):
        self.port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()

    async def send(self, path, body=None):
        payload = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
        self.writer.write(head.encode() + payload)
        await self.writer.drain()

    async def head(self):
        self.status = int((await self.reader.readline()).split()[1])
        self.headers = {}
        while (line := (await self.reader.readline()).strip()):
            name, value = line.decode().split(":", 1)
            self.headers[name.lower()] = value.strip()

    async def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return await self.reader.read()
        return b"".join([part async for part in self.parts()])

    async def parts(self):
        while (size := int(await self.reader.readline(), 16)):
            yield await self.reader.readexactly(size)
            await self.reader.readline()

    async def events(self):
        rest = b""
        async for part in self.parts():
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                yield event.removeprefix(b"data: ")
        if rest:
            raise Failure(f"half an event: {rest[:200]}")


class Ledger:
    """What the clients saw."""

    def __init__(self):
        self.finished = {"stop": 0, "length": 0}
        self.completion_tokens = self.prompt_tokens = 0
        self.refused = self.rejected = self.requests = 0
        # Of requests whose client left: choices, prompt tokens and output tokens that the server may have counted.
        self.left_choices = self.left_tokens = self.left_prompts = 0

    def add(self, body, choices, usage):
        for choice in choices:
            self.finished[choice] += 1
        self.completion_tokens += usage["completion_tokens"]
        self.prompt_tokens += usage["prompt_tokens"]
        self.requests += 1

    def leave(self, body):
        n = body.get("n", 1)
        self.left_choices += n
        self.left_tokens += n * body["max_tokens"]
        self.left_prompts += 4 * len(json.dumps(body)) + 200


class Soak:
    def __init__(self, port, seed):
        self.port, self.rng, self.ledger = port, random.Random(seed), Ledger()
        self.kinds = {}

    # What is asked.

    def prompt(self, most_words):
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, most_words)))

    def body(self, is_chat, most_words=40, most_tokens=24):
        rng = self.rng
        text = self.prompt(most_words)
        body = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        body["max_tokens"] = rng.randint(1, most_tokens)
        body["temperature"] = rng.choice([0, 0.7, 1.0, 1.5])
        for chance, extra in [
            (0.2, {"n": rng.randint(2, 4)}),
            (0.2, {"stop": rng.choice(["e", ["the", "\n"], [" a", "STOP"]])}),
            (0.15, {"logprobs": True, "top_logprobs": 3} if is_chat else {"logprobs": 3}),
            (0.15, {"ignore_eos": True}),
            (0.1, {"seed": rng.randint(0, 9)}),
            (0.1, {"min_tokens": 1}),
            (0.1, {"presence_penalty": 1.0, "repetition_penalty": 1.2}),
            (0.05, {"logit_bias": {"2": 100}}),
            (0.05, {"allowed_token_ids": [1, 2, 30, 31, 32]}),
            (0.05, {"bad_words": ["the", "a"]}),
            (0.05, {} if is_chat else {"echo": True, "logprobs": None}),
        ]:
            if rng.random() < chance:
                body.update(extra)
        return body

    def endpoint(self):
        is_chat = self.rng.random() < 0.5
        return is_chat, "/v1/chat/completions" if is_chat else "/v1/completions"

    # What clients do.

    async def answer(self, connection, stream, body):
        """Reads a whole answer and enters it."""
        await connection.head()
        if connection.status == 429:
            if int(connection.headers["retry-after"]) < 1:
                raise Failure("429 without a time to come back")
            await connection.body()
            self.ledger.rejected += 1
            return
        if connection.status != 200:
            raise Failure(f"{connection.status} for {body}: {await connection.body()}")
        if not stream:
            answer = json.loads(await connection.body())
            self.ledger.add(body, [c["finish_reason"] for c in answer["choices"]], answer["usage"])
            return
        reasons, usage, events = [], None, [event async for event in connection.events()]
        if events[-1] != b"[DONE]":
            raise Failure(f"a stream ends with {events[-1][:300]}")
        for event in events[:-1]:
            chunk = json.loads(event)
            if "error" in chunk:
                raise Failure(f"{chunk} for {body}")
            reasons += [c["finish_reason"] for c in chunk["choices"] if c["finish_reason"]]
            usage = chunk["usage"] or usage
        if len(reasons) != body.get("n", 1):
            raise Failure(f"{len(reasons)} reasons for {body}")
        self.ledger.add(body, reasons, usage)

    async def stays(self):
        is_chat, path = self.endpoint()
        body, stream = self.body(is_chat), self.rng.random() < 0.5
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with Connection(self.port) as connection:
            await connection.send(path, body)
            await self.answer(connection, stream, body)

    async def leaves(self):
        """At once, in the queue, in the prefill, after some chunks, or while a whole answer is being made."""
        is_chat, path = self.endpoint()
        phase = self.rng.choice(["at once", "prefill", "chunks", "whole"])
        body = self.body(is_chat, most_words=400 if phase == "prefill" else 40) | {"max_tokens": 300, "ignore_eos": True}
        body.pop("logprobs", None), body.pop("top_logprobs", None), body.pop("stop", None)
        if phase == "chunks":
            body["stream"] = True
        self.ledger.leave(body)
        async with Connection(self.port) as connection:
            await connection.send(path, body)
            if phase == "chunks":
                await connection.head()
                wanted = self.rng.randint(1, 20)
                if connection.status != 200:
                    return
                async for _ in connection.events():
                    wanted -= 1
                    if wanted == 0:
                        return
            elif phase != "at once":
                await asyncio.sleep(self.rng.random() * 0.5)

    async def is_bad(self):
        is_chat, path = self.endpoint()
        good = self.body(is_chat)
        bad = self.rng.choice([
            b"{", b"\xff", b"[]", json.dumps(good).encode()[:-1],
            good | {"temperature": 999999}, good | {"top_p": -1}, good | {"n": 1000000},
            good | {"max_tokens": -5}, good | {"stop_token_ids": [10**9]}, good | {"logit_bias": {"x": 1}},
            good | {"model": "nobody"}, good | {"max_tokens": 10**6}, good | {"stream_options": {}},
            {"messages": []} if is_chat else {"prompt": ["a"] * 100000},
        ])
        async with Connection(self.port) as connection:
            await connection.send(path, bad)
            await connection.head()
            answer = json.loads(await connection.body())
            if not 400 <= connection.status < 500 or set(answer["error"]) != {"message", "type", "param", "code"}:
                raise Failure(f"{connection.status} {answer} for {str(bad)[:300]}")
            self.ledger.refused += 1

    async def asks_around(self):
        path, body = self.rng.choice([
            ("/v1/models", None), ("/health", None), ("/metrics", None), ("/version", None),
            ("/tokenize", {"prompt": self.prompt(50)}), ("/detokenize", {"tokens": [1, 2, 3, 400]}),
        ])
        async with Connection(self.port) as connection:
            await connection.send(path, body)
            await connection.head()
            text = await connection.body()
            if connection.status != 200:
                raise Failure(f"{connection.status} for {path}: {text}")

    async def bursts(self):
        clients = [self.leaves() if self.rng.random() < 0.25 else self.stays() for _ in range(BURST)]
        await asyncio.gather(*clients)

    async def client(self, until):
        kinds = [self.stays, self.leaves, self.is_bad, self.asks_around]
        while time.monotonic() < until:
            kind = self.rng.choices(kinds, [60, 20, 12, 8])[0]
            self.kinds[kind.__name__] = self.kinds.get(kind.__name__, 0) + 1
            await asyncio.wait_for(kind(), PATIENCE)

    # What is checked.

    async def get(self, path):
        async with Connection(self.port) as connection:
            await connection.send(path)
            await connection.head()
            return (await connection.body()).decode()

    async def metrics(self):
        values = {}
        for line in (await self.get("/metrics")).splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                bare, labels = (name.split("{") + [""])[:2]
                values[bare] = values.get(bare, 0.0) + float(value)
                for label in labels.rstrip("}").split(","):
                    values[f"{bare}:{label}"] = values.get(f"{bare}:{label}", 0.0) + float(value)
        return values

    async def rest(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            metrics = await self.metrics()
            busy = {name: metrics[name] for name in GAUGES if metrics[name] != 0}
            if not busy:
                return metrics
            if time.monotonic() > deadline:
                raise Failure(f"does not come to rest: {busy}")
            await asyncio.sleep(0.1)

    async def probe(self):
        async with Connection(self.port) as connection:
            await connection.send("/v1/completions", PROBE)
            await self.answer_probe(connection)

    async def answer_probe(self, connection):
        await connection.head()
        answer = json.loads(await connection.body())
        text = answer["choices"][0]["text"]
        if not text.startswith(" Paris."):
            raise Failure(f"the probe is answered with {text!r}")
        self.ledger.add(PROBE, [answer["choices"][0]["finish_reason"]], answer["usage"])

    async def exact_round(self):
        """Nobody leaves: the counters move by exactly what the clients saw."""
        before, saw = await self.rest(), Ledger()
        whole, self.ledger = self.ledger, saw
        await asyncio.gather(*(self.stays() for _ in range(2 * MAX_NUM_SEQS)), *(self.is_bad() for _ in range(4)))
        await self.probe()
        self.ledger = whole
        after = await self.rest()
        moved = {name: after[name] - before.get(name, 0.0) for name in after}
        for name, wanted in [
            ('vllm:request_success_total:finished_reason="stop"', saw.finished["stop"]),
            ('vllm:request_success_total:finished_reason="length"', saw.finished["length"]),
            ("vllm:request_success_total", sum(saw.finished.values())),
            ("vllm:generation_tokens_total", saw.completion_tokens),
            ("vllm:prompt_tokens_total", saw.prompt_tokens),
            ("izar:admission_rejections_total", saw.rejected),
        ]:
            if moved[name] != wanted:
                raise Failure(f"{name} moved by {moved[name]}, the clients saw {wanted}")
        for name, count in saw.finished.items():
            whole.finished[name] += count
        for name in ["completion_tokens", "prompt_tokens", "refused", "rejected", "requests"]:
            setattr(whole, name, getattr(whole, name) + getattr(saw, name))

    def check_totals(self, metrics):
        """Over all: what the clients saw, and at most what those who left may account for."""
        ledger = self.ledger
        finished = sum(ledger.finished.values())
        for name, least, most in [
            ("vllm:request_success_total", finished, finished + ledger.left_choices),
            ("vllm:generation_tokens_total", ledger.completion_tokens, ledger.completion_tokens + ledger.left_tokens),
            ("vllm:prompt_tokens_total", ledger.prompt_tokens, ledger.prompt_tokens + ledger.left_prompts),
        ]:
            if not least <= metrics[name] <= most:
                raise Failure(f"{name} is {metrics[name]}, the clients saw {least} to {most}")
        if metrics['vllm:request_success_total:finished_reason="error"'] != 0:
            raise Failure("requests failed in the engine")


def anonymous_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) / 1024


def num_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


async def run(port, pid, minutes, seed):
    soak, memory, files, begun = Soak(port, seed), [], [], time.monotonic()
    while not memory or time.monotonic() < begun + 60 * minutes:
        until = time.monotonic() + min(CYCLE_SECONDS, max(20, 60 * minutes / 6))
        await asyncio.gather(*(soak.client(until) for _ in range(NUM_CLIENTS)))
        await soak.bursts()
        await soak.exact_round()
        metrics = await soak.rest()
        soak.check_totals(metrics)
        memory.append(anonymous_mib(pid))
        files.append(num_files(pid))
        ledger = soak.ledger
        print(f"{(time.monotonic() - begun) / 60:5.1f} min: {ledger.requests} answered, {ledger.refused} bad, "
              f"{ledger.rejected} rejected, {ledger.left_choices} choices left, {ledger.completion_tokens} tokens, "
              f"{metrics['vllm:num_preemptions_total']:.0f} preemptions, {memory[-1]:.1f} MiB anonymous, {files[-1]} files",
              flush=True)
    check_flat(memory, files)


def check_flat(memory, files):
    """The first third is for warming up; then neither memory nor files may grow."""
    settled = memory[len(memory) // 3:]
    half = max(1, len(settled) // 2)
    growth = statistics.median(settled[-half:]) - statistics.median(settled[:half])
    print(f"memory: {memory[0]:.1f} MiB after the first cycle, {memory[-1]:.1f} MiB at the end, "
          f"{growth:+.1f} MiB between the halves after warm-up")
    if growth > MEMORY_SLACK_MIB:
        raise Failure(f"memory grows: {[round(m, 1) for m in memory]}")
    if max(files[len(files) // 3:]) > max(files[:len(files) // 3 + 1]) + 4:
        raise Failure(f"open files grow: {files}")


def serve(izar, model):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([
        izar, "serve", model, "--port", str(port), "--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", "1024",
        "--max-num-batched-tokens", "128", "--num-kv-blocks", "72", "--max-num-queued-requests", str(MAX_QUEUED), "--log", "warn"])
    deadline = time.monotonic() + 120
    while True:
        try:
            if '"ok"' in asyncio.run(Soak(port, 0).get("/health")):
                return process, port
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit("the server did not become healthy")
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("izar")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    process, port = serve(arguments.izar, arguments.model)
    failed = True
    try:
        asyncio.run(run(port, process.pid, arguments.minutes, arguments.seed))
        process.send_signal(signal.SIGTERM)
        failed = process.wait(timeout=PATIENCE) != 0
        if failed:
            print(f"FAILED the server left with {process.returncode} on SIGTERM")
    except Failure as failure:
        print(f"FAILED {failure}")
    finally:
        process.kill()
    print("0 passed, 1 failed" if failed else "1 passed, 0 failed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
