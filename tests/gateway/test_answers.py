"""Good answers, through the official client and byte by byte, over both kinds of link."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import openai
import pytest
import trio
from openai import OpenAI

from capdag.gateway import GatewaySettings
from tests.gateway.harness import CHAT, FINISH, MODEL, TEXT, USAGE, Served, answering, ask, served
from tests.gateway.scripted import ScriptedRequest, model_caps

T = TypeVar("T")
both_links = pytest.mark.parametrize("link", ["local", "socket"])
MESSAGES: Any = CHAT["messages"]


async def with_openai(server: Served, use: Callable[[OpenAI], T]) -> T:
    """Run `use` with the official client, in a thread, without retries."""

    def run() -> T:
        with OpenAI(base_url=server.base_url, api_key="sk-x", max_retries=0, timeout=10) as client:
            return use(client)

    return await trio.to_thread.run_sync(run, abandon_on_cancel=True)


@both_links
async def test_a_chat_through_the_official_client(link: str) -> None:
    async with served(TEXT, link) as server:
        answer = await with_openai(
            server, lambda client: client.chat.completions.create(model=MODEL, messages=MESSAGES)
        )
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == ("Hello", "assistant", "stop")
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5


@both_links
async def test_a_streamed_chat_through_the_official_clients_helper(link: str) -> None:
    def stream(client: OpenAI) -> Any:
        with client.chat.completions.stream(
            model=MODEL, messages=MESSAGES, stream_options={"include_usage": True}
        ) as events:
            texts = [event.delta for event in events if event.type == "content.delta"]
            return texts, events.get_final_completion()

    async with served(TEXT, link) as server:
        texts, final = await with_openai(server, stream)
    assert [text for text in texts if text] == ["Hel", "lo"]
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == "Hello"
    assert final.usage.completion_tokens == 2


@both_links
async def test_a_stream_byte_for_byte(link: str) -> None:
    async with served(TEXT, link) as server:
        reply = await ask(server, "POST", "/v1/chat/completions", {**CHAT, "stream": True})
    assert (reply.status, reply.complete) == (200, True)
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-encoding" not in reply.headers
    head = f'"object":"chat.completion.chunk","created":N,"model":"{MODEL}","choices":[{{"index":0,"delta":'
    text = re.sub(r'"id":"chatcmpl-[0-9a-f]{32}",', "", reply.body.decode())
    assert re.sub(r'"created":\d+', '"created":N', text) == (
        f'data: {{{head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {{{head}{{"content":"Hel"}},"finish_reason":null}}]}}\n\n'
        f'data: {{{head}{{"content":"lo"}},"finish_reason":null}}]}}\n\n'
        f'data: {{{head}{{}},"finish_reason":"stop"}}]}}\n\n'
        "data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("options", "wanted"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
async def test_usage_is_streamed_only_to_those_who_ask(options: Any, wanted: bool) -> None:
    async with served(TEXT) as server:
        asked = {**CHAT, "stream": True, "stream_options": options}
        events = (await ask(server, "POST", "/v1/chat/completions", asked)).events
    assert events[-1] == "[DONE]"
    with_usage = [event for event in events[:-1] if "usage" in event]
    assert len(with_usage) == int(wanted)
    if wanted:
        assert with_usage == events[-2:-1]
        assert with_usage[0]["choices"] == []
        assert with_usage[0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize("stream", [True, False])
async def test_completions_through_the_official_client(stream: bool) -> None:
    def complete(client: OpenAI) -> str:
        answer: Any = client.completions.create(model=MODEL, prompt=["once"], stream=stream)
        return "".join(part.choices[0].text for part in answer) if stream else answer.choices[0].text

    async with served(TEXT) as server:
        assert await with_openai(server, complete) == "Hello"
        assert await server.host.requests[0].body() == (
            {"model": MODEL, "prompt": "once", **({"stream": True} if stream else {})}
            if stream
            else {"model": MODEL, "prompt": "once", "stream": False}
        )


async def test_tool_calls_through_the_official_client() -> None:
    script = answering(
        {"reasoning": "which one"},
        {"tool": {"index": 0, "id": "a", "name": "add", "arguments": '{"x":'}},
        {"tool": {"index": 0, "arguments": "1}"}},
        {"tool": {"index": 1, "id": "b", "name": "now"}},
        *FINISH,
    )
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "now")]

    def call(client: OpenAI) -> Any:
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=tools) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0]

    async with served(script, caps=model_caps(MODEL, abilities=["tools"])) as server:
        choice = await with_openai(server, call)
        plain: Any = await with_openai(
            server, lambda client: client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools)
        )
    for found in (choice, plain.choices[0]):
        assert found.finish_reason == "tool_calls"
        calls = [(item.id, item.function.name, item.function.arguments) for item in found.message.tool_calls]
        assert calls == [("a", "add", '{"x":1}'), ("b", "now", "{}")]
    assert plain.choices[0].message.content is None


async def test_line_separators_reach_the_client_as_sent() -> None:
    text = "a\u2028b\u2029c\x85d😀"
    async with served(answering({"text": text}, *FINISH)) as server:
        reply = await ask(server, "POST", "/v1/chat/completions", {**CHAT, "stream": True})
        whole = await ask(server, "POST", "/v1/chat/completions", CHAT)
    for body in (reply.body, whole.body):
        assert not {"\u2028", "\u2029", "\x85"} & set(body.decode())
    assert reply.events[1]["choices"][0]["delta"]["content"] == text
    assert json.loads(whole.body)["choices"][0]["message"]["content"] == text


@both_links
async def test_the_cartridge_gets_the_body_as_it_was_sent(link: str) -> None:
    body = {**CHAT, "unheard_of": {"deep": [1, None]}, "n": 1, "user": "u"}
    large = {**body, "filler": "x" * 3_000_000}
    async with served(TEXT, link) as server:
        for sent in (body, large):
            assert (await ask(server, "POST", "/v1/chat/completions", sent)).status == 200
            assert await server.host.requests[-1].body() == sent


async def test_a_model_is_found_whatever_the_case_of_its_name_and_named_as_it_is() -> None:
    async with served(TEXT, caps=model_caps("Org/Model")) as server:
        reply = await ask(server, "POST", "/v1/chat/completions", {**CHAT, "model": "org/MODEL"})
        assert json.loads(reply.body)["model"] == "Org/Model"
        assert "model=org/model" in server.host.requests[0].cap


async def test_what_is_ready_together_is_one_write() -> None:
    """Events of one batch arrive in one HTTP chunk: nothing is split, nothing waits for company."""
    async with served(answering(*({"text": str(i)} for i in range(20)), *FINISH), "local") as server:
        http = await server.connect()
        await http.send("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        first = await http.data()
        await http.close()
    assert first.count(b"data: ") == 23


@both_links
async def test_many_streams_at_once_each_get_their_own(link: str) -> None:
    async def script(request: ScriptedRequest) -> None:
        asked = await request.body()
        request.start()
        for letter in asked["messages"][0]["content"]:
            await request.emit({"text": letter})
            await trio.sleep(0.001)
        await request.emit(*FINISH)
        request.end()

    async def one(server: Served, text: str) -> None:
        body = {**CHAT, "messages": [{"role": "user", "content": text}], "stream": True}
        events = (await ask(server, "POST", "/v1/chat/completions", body)).events
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]) == text

    async with served(script, link) as server, trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(one, server, f"stream {number} of sixteen " * 3)


async def test_models_are_listed_in_a_stable_order_and_found_with_their_slashes() -> None:
    caps = [*model_caps("zeta"), *model_caps("Org/Alpha:7b", "chat", created=5), *model_caps("weird", created=10**400)]
    async with served(TEXT, caps=caps) as server:
        listed = await with_openai(server, lambda client: list(client.models.list()))
        assert [(model.id, model.created, model.owned_by) for model in listed] == [
            ("Org/Alpha:7b", 5, "scripted"),
            ("weird", 0, "scripted"),
            ("zeta", 1_700_000_000, "scripted"),
        ]
        found = await with_openai(server, lambda client: client.models.retrieve("Org/Alpha:7b"))
        assert found == listed[0]
        assert (await ask(server, "GET", "/v1/models/org/alpha:7b?x=1")).status == 200
        assert not server.host.requests


async def test_readiness_follows_the_switch() -> None:
    async with served(TEXT) as server:
        assert json.loads((await ask(server, "GET", "/healthz")).body) == {"status": "ready", "models": 1}
        server.host.die()
        reply = await ask(server, "GET", "/healthz")
        assert (reply.status, reply.error["code"]) == (503, "not_ready")
        assert reply.headers["retry-after"]


async def silent_until(released: trio.Event, *, start: bool, request: ScriptedRequest) -> None:
    await request.body()
    if start:
        request.start()
    await released.wait()
    if not start:
        request.start()
    await request.emit({"text": "late"}, *FINISH)
    request.end()


@pytest.mark.parametrize("start", [True, False])
async def test_a_silence_is_filled_with_empty_chunks(start: bool) -> None:
    """Before the stream starts the headers come after `commit_after`; later an empty chunk after each `heartbeat`."""
    released = trio.Event()
    script = partial(silent_until, released, start=start)
    settings = GatewaySettings(commit_after=0.05 if not start else 60, heartbeat=0.05)

    async with served(lambda request: script(request=request), settings=settings) as server:
        http = await server.connect()
        await http.send("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        body = b""
        while body.count(b'"delta":{}') < 2:
            body += await http.data()
        released.set()
        while b"[DONE]" not in body:
            body += await http.data()
        await http.close()
    chunks = [json.loads(event[6:])["choices"][0] for event in body.decode().split("\n\n")[:-2]]
    found = [chunk["delta"] for chunk in chunks]
    assert found[:3] == [{"role": "assistant", "content": ""}, {}, {}]
    assert found[-2:] == [{"content": "late"}, {}]
    assert [chunk["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), "stop"]


async def test_heartbeats_do_not_disturb_the_official_client() -> None:
    async def script(request: ScriptedRequest) -> None:
        await request.body()
        request.start()
        for text in ("a", "b", "c"):
            await trio.sleep(0.06)
            await request.emit({"text": text})
        await request.emit(*FINISH)
        request.end()

    def stream(client: OpenAI) -> Any:
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as events:
            return "".join(event.delta for event in events if event.type == "content.delta")

    async with served(script, settings=GatewaySettings(heartbeat=0.02)) as server:
        assert await with_openai(server, stream) == "abc"


async def test_progress_is_not_shown_and_does_not_begin_the_stream() -> None:
    async def script(request: ScriptedRequest) -> None:
        request.progress(0.5, "loading")
        request.fail("MODEL_LOAD_FAILED", "environment", "no memory")

    async with served(script) as server:
        with pytest.raises(openai.InternalServerError) as caught:
            await with_openai(
                server, lambda client: client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            )
    assert caught.value.status_code == 503
    assert USAGE
