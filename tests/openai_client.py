"""The OpenAI Python client against a running Izar server with a real model.

    python tests/openai_client.py IZAR MODEL

Starts `IZAR serve MODEL` on a free port, runs every `test_*` function below, and stops it.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request

import openai

KEY = "test-key"
MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "Name the capital of France."}]
ANSWER = "The capital of France is Paris."


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, izar, model):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [izar, "serve", model, "--host", "127.0.0.1", "--port", str(self.port),
             "--served-model-name", MODEL, "--api-key", KEY, "--max-num-seqs", "16"],
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.process.kill()
                    raise SystemExit("the server did not become healthy")
                time.sleep(0.1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()

    def metrics(self):
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as r:
            lines = r.read().decode().splitlines()
        values = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name.split("{")[0]] = values.get(name.split("{")[0], 0.0) + float(value)
        return values


def raises(status, call):
    try:
        call()
    except openai.APIStatusError as e:
        assert e.status_code == status, f"wanted {status}, got {e.status_code}: {e}"
        return e
    raise AssertionError(f"wanted status {status}, got an answer")


def test_chat_answers_like_fp32(c, s):
    r = c.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert r.choices[0].message.content == ANSWER, r
    assert r.choices[0].finish_reason == "stop"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens


def test_stream_equals_non_stream(c, s):
    stream = c.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True,
        stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == ANSWER
    assert len({x.id for x in chunks}) == 1
    assert [bool(x.usage) for x in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    finishes = [x.choices[0].finish_reason for x in chunks if x.choices]
    assert finishes[-1] == "stop" and not any(finishes[:-1]), finishes


def test_completion_and_stop_string(c, s):
    r = c.completions.create(model=MODEL, prompt="The capital of France is", temperature=0,
                             max_tokens=16, stop=["\n"])
    assert r.choices[0].text == " Paris.", r
    assert r.choices[0].finish_reason == "stop"


def test_length_and_usage(c, s):
    r = c.completions.create(model=MODEL, prompt="One two three", max_tokens=7, temperature=0,
                             extra_body={"ignore_eos": True})
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 7


def test_logprobs(c, s):
    r = c.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=3,
                                  logprobs=True, top_logprobs=2)
    entries = r.choices[0].logprobs.content
    assert len(entries) == 3
    for e in entries:
        assert e.logprob <= 0 and len(e.top_logprobs) == 2
        assert e.top_logprobs[0].token == e.token, "greedy takes the most likely token"


def test_seed_repeats_and_differs(c, s):
    def ask(seed):
        return c.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=24,
                                    temperature=1.0, seed=seed).choices[0].text
    assert ask(7) == ask(7)
    assert ask(7) != ask(8)


def test_several_choices(c, s):
    r = c.chat.completions.create(model=MODEL, messages=QUESTION, n=3, temperature=0.0)
    assert [x.index for x in r.choices] == [0, 1, 2]
    assert {x.message.content for x in r.choices} == {ANSWER}


def test_models(c, s):
    assert [m.id for m in c.models.list()] == [MODEL]
    assert c.models.retrieve(MODEL).id == MODEL


def test_errors_name_the_field_and_lose_nothing(c, s):
    e = raises(400, lambda: c.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9e9))
    assert e.body["param"] == "temperature", e.body
    raises(400, lambda: c.chat.completions.create(model=MODEL, messages=[]))
    raises(404, lambda: c.chat.completions.create(model="nobody", messages=QUESTION))
    too_long = c.with_options(max_retries=0)
    raises(400, lambda: too_long.completions.create(model=MODEL, prompt=[1] * 20000, max_tokens=1))
    raises(401, lambda: openai.OpenAI(base_url=c.base_url, api_key="wrong").models.list())
    test_chat_answers_like_fp32(c, s)


def test_many_at_once_async(c, s):
    async def run():
        async with openai.AsyncOpenAI(base_url=c.base_url, api_key=KEY) as a:
            return await asyncio.gather(*(
                a.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
                for _ in range(40)))
    assert {r.choices[0].message.content for r in asyncio.run(run())} == {ANSWER}


def test_async_streams_concatenate_to_the_whole_answer(c, s):
    async def one(a):
        stream = await a.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True})
        text, usages = "", []
        async for chunk in stream:
            usages.append(chunk.usage)
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
        assert usages[-1] and not any(usages[:-1]), usages
        return text

    async def run():
        async with openai.AsyncOpenAI(base_url=c.base_url, api_key=KEY) as a:
            return await asyncio.gather(*(one(a) for _ in range(20)))
    assert set(asyncio.run(run())) == {ANSWER}


def test_stream_helper_rebuilds_the_message(c, s):
    with c.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events and events[-1] in ("content.done", "chunk"), events
    assert final.choices[0].message.content == ANSWER
    assert final.choices[0].finish_reason == "stop"


def test_completions_of_several_prompts_stream_as_they_are_answered_whole(c, s):
    ask = dict(model=MODEL, prompt=["The capital of France is", "One, two, three,"], temperature=0, max_tokens=6,
               logprobs=2, n=2)
    whole = c.completions.create(**ask)
    texts, tokens = [""] * 4, [[] for _ in range(4)]
    for chunk in c.completions.create(**ask, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        if choice.logprobs:
            tokens[choice.index] += choice.logprobs.tokens
    assert texts == [x.text for x in whole.choices]
    assert tokens == [x.logprobs.tokens for x in whole.choices]


def test_errors_are_of_the_clients_own_classes_also_for_streams(c, s):
    for wrong, error, extra in [
        (c, openai.BadRequestError, {"top_p": -1}),
        (c, openai.BadRequestError, {"messages": []}),
        (c, openai.NotFoundError, {"model": "nobody"}),
        (openai.OpenAI(base_url=c.base_url, api_key="wrong"), openai.AuthenticationError, {}),
    ]:
        for stream in (False, True):
            try:
                wrong.chat.completions.create(**({"model": MODEL, "messages": QUESTION, "stream": stream} | extra))
            except error as e:
                assert set(e.response.json()["error"]) == {"message", "type", "param", "code"}
            else:
                raise AssertionError(f"{extra} was answered")


def test_answers_carry_their_request_id(c, s):
    r = c.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=1)
    assert r._request_id, "x-request-id"


def test_unicode_round_trips(c, s):
    text = "é 日本語 😀 \u202e \t \\ \" end"
    r = c.completions.create(model=MODEL, prompt=text, max_tokens=1, temperature=0, extra_body={"echo": True})
    assert r.choices[0].text.startswith(text), r


def test_responses_whole_and_streamed(c, s):
    r = c.responses.create(model=MODEL, input=QUESTION, temperature=0)
    assert r.status == "completed" and r.output_text == ANSWER, r
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    text, kinds = "", []
    for event in c.responses.create(model=MODEL, input=QUESTION, temperature=0, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == ANSWER and kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    with c.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == ANSWER


def test_tools_are_listed_or_refused_by_name(c, s):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    r = c.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, tools=tools, tool_choice="none")
    assert r.choices[0].message.content == ANSWER and not r.choices[0].message.tool_calls
    e = raises(400, lambda: c.chat.completions.create(model=MODEL, messages=QUESTION, tools=tools, tool_choice="auto"))
    assert e.body["param"] in ("tools", "tool_choice"), e.body
def test_responses_answer_like_chat(c, s):
    r = c.responses.create(model=MODEL, input="Name the capital of France.", temperature=0)
    assert r.output_text == ANSWER and r.status == "completed", r
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    turns = [{"role": "user", "content": "Name the capital of France."}] + [x.to_dict() for x in r.output]
    again = c.responses.create(model=MODEL, input=turns + [{"role": "user", "content": "Thanks."}], max_output_tokens=4)
    assert again.usage.input_tokens > r.usage.total_tokens
    assert (again.status, again.incomplete_details.reason) == ("incomplete", "max_output_tokens"), again
    e = raises(400, lambda: c.responses.create(model=MODEL, input="Hi", previous_response_id=r.id))
    assert e.body["param"] == "previous_response_id", e.body


def test_responses_stream_helper_rebuilds_the_response(c, s):
    with c.responses.stream(model=MODEL, input="Name the capital of France.", temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == ANSWER, final
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == ANSWER
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


CITIES = ["Paris", "Oslo"]
TOOL = {"name": "get_weather", "description": "The weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"], "additionalProperties": False}}
TOOLS = [{"type": "function", "function": TOOL}]


def test_required_calls_stream_in_pieces_that_make_the_whole_call(c, s):
    ask = dict(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
               temperature=0, max_tokens=100)
    whole = c.chat.completions.create(**ask).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
    call = whole.message.tool_calls[0]
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] in CITIES, call
    pieces = [x.choices[0].delta.tool_calls[0] for x in c.chat.completions.create(**ask, stream=True)
              if x.choices[0].delta.tool_calls]
    assert [bool(p.id) for p in pieces] == [bool(p.function.name) for p in pieces] == [True] + [False] * (len(pieces) - 1)
    assert "".join(p.function.arguments for p in pieces) == call.function.arguments and len(pieces) > 2
    with c.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    turns = QUESTION + [whole.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert c.chat.completions.create(model=MODEL, messages=turns, max_tokens=3).usage.completion_tokens == 3


def test_named_call_is_of_that_tool(c, s):
    r = c.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=100, seed=1)
    assert json.loads(r.choices[0].message.tool_calls[0].function.arguments)["city"] in CITIES, r


def test_calls_by_choice_need_a_model_that_knows_how(c, s):
    e = raises(400, lambda: c.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS))
    assert e.body["param"] == "tools" and "--tool-call-parser" in e.body["message"], e.body


def test_responses_call_tools(c, s):
    ask = dict(model=MODEL, input="Weather in Paris?", tools=[{"type": "function", "strict": True, **TOOL}],
               tool_choice="required", parallel_tool_calls=False, temperature=0, max_output_tokens=100)
    call = c.responses.create(**ask).output[0]
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in CITIES, call
    with c.responses.stream(**ask) as stream:
        final = stream.get_final_response().output[0]
    assert (final.type, final.name, final.arguments) == ("function_call", "get_weather", call.arguments)


CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 0, "maximum": 99999999}},
        "required": ["city", "people"], "additionalProperties": False}


def test_structured_output_is_what_was_asked_for_whole_and_streamed(c, s):
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    ask = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=80)
    text = c.chat.completions.create(**ask, response_format=schema).choices[0].message.content
    answer = json.loads(text)
    assert set(answer) == {"city", "people"} and isinstance(answer["people"], int), text
    chunks = c.chat.completions.create(**ask, response_format=schema, stream=True)
    assert "".join(x.choices[0].delta.content or "" for x in chunks) == text
    r = c.chat.completions.create(**ask, extra_body={"structured_outputs": {"choice": ["Paris", "Rome"]}})
    assert r.choices[0].message.content == "Paris", r
    r = c.completions.create(model=MODEL, prompt="In the year", temperature=0, max_tokens=8,
                             extra_body={"structured_outputs": {"regex": " [0-9]{4}"}})
    assert len(r.choices[0].text) == 5 and r.choices[0].text[1:].isdigit(), r
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    e = raises(400, lambda: c.chat.completions.create(**ask, response_format=broken))
    assert e.body["param"].startswith("response_format"), e.body


def test_leaving_frees_everything(c, s):
    stream = c.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Tell a very long story."}],
        max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 10
    while True:
        m = s.metrics()
        busy = (m["vllm:num_requests_running"], m["vllm:num_requests_waiting"], m["vllm:kv_cache_usage_perc"],
                m["izar:ring_slots_in_use"])
        if busy == (0, 0, 0, 0):
            return
        assert time.monotonic() < deadline, f"still busy: {busy}"
        time.sleep(0.05)


def main():
    izar, model = sys.argv[1:]
    server = Server(izar, model)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=120)
    passed = failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test(client, server)
                passed += 1
                print(f"ok {name}")
            except Exception:
                failed += 1
                print(f"FAILED {name}")
                traceback.print_exc()
    code = server.stop()
    if code != 0:
        failed += 1
        print(f"FAILED the server left with {code} on SIGTERM")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
