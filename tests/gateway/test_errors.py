"""Every failure has one form, its own status, and words that help."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import openai
import pytest
import trio
from openai import OpenAI

from capdag.gateway import GatewaySettings, Readiness
from tests.gateway.harness import CHAT, FINISH, MODEL, TEXT, Reply, Served, ask, served
from tests.gateway.scripted import ScriptedRequest, model_caps
from tests.gateway.test_answers import MESSAGES, both_links, with_openai

PATH = "/v1/chat/completions"


def failing(*failure: Any, after: int | None = None) -> Any:
    """Return a script that fails: at once, or when it has started and sent `after` events."""

    async def script(request: ScriptedRequest) -> None:
        await request.body()
        if after is not None:
            request.start()
            await request.emit(*({"text": "x"} for _ in range(after)))
        request.fail(*failure)

    return script


def dying(after: int | None = None) -> Any:
    """Return a script whose host dies instead."""

    async def script(request: ScriptedRequest) -> None:
        await request.body()
        if after is not None:
            request.start()
            await request.emit(*({"text": "x"} for _ in range(after)))
        request._host.die()

    return script


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "attribution", "status", "kind", "http_code", "retry"),
    [
        ("INVALID_REQUEST", "input", 400, "invalid_request_error", "invalid_request", "false"),
        ("CONTEXT_LENGTH_EXCEEDED", "input", 400, "invalid_request_error", "context_length_exceeded", "false"),
        ("CARTRIDGE_DIED", "environment", 502, "server_error", "cartridge_died", "true"),
        ("HANDLER_ERROR", "internal", 502, "server_error", "handler_error", "false"),
        ("QUEUE_FULL", "resource", 503, "server_error", "all_slots_busy", "true"),
        ("SPAWN_FAILED", "environment", 503, "server_error", "spawn_failed", "true"),
        ("NO_HANDLER", "environment", 503, "server_error", "no_handler", "true"),
        ("DEADLINE_EXCEEDED", "resource", 504, "server_error", "deadline_exceeded", "false"),
        ("CANCELLED", "user", 503, "server_error", "cancelled", "false"),
        ("THEIR_OWN_CODE", "input", 400, "invalid_request_error", "their_own_code", "false"),
    ],
)
async def test_an_error_before_the_answer_has_its_status(
    stream: bool, code: str, attribution: str, status: int, kind: str, http_code: str, retry: str
) -> None:
    async with served(failing(code, attribution, "it says why")) as server:
        reply = await ask(server, "POST", PATH, {**CHAT, "stream": stream})
    assert (reply.status, reply.complete) == (status, True)
    assert reply.error == {"message": "it says why", "type": kind, "param": None, "code": http_code}
    assert reply.headers["x-should-retry"] == retry
    assert reply.headers["x-request-id"].startswith("req_")
    assert ("retry-after" in reply.headers) == (status == 503 and retry == "true")


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/healthz", "/v1/model"])
async def test_a_server_that_starts_tells_everybody_to_come_again(path: str) -> None:
    async with served(failing("HANDLER_ERROR", "internal", "no"), readiness=Readiness.STARTING) as server:
        replies = [await ask(server, "GET", path), await ask(server, "POST", PATH, CHAT)]
    for reply in replies:
        assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "starting", "2")


async def test_a_model_that_may_still_come_is_not_told_to_be_none() -> None:
    async with served(failing("HANDLER_ERROR", "internal", "no"), readiness=Readiness.LEARNING) as server:
        missing = await ask(server, "POST", PATH, {**CHAT, "model": "later"})
        assert (await ask(server, "GET", f"/v1/models/{MODEL}")).status == 200
    assert (missing.status, missing.error["code"], missing.headers["retry-after"]) == (503, "starting", "2")
    assert missing.error["message"].startswith("no host serves the model 'later': the models are ")


async def test_what_a_dead_engine_has_printed_is_not_for_clients() -> None:
    script = failing("CARTRIDGE_DIED", "environment", "cartridge 'a' was killed", {"stderr": "/home/me/secret.gguf"})
    async with served(script) as server:
        reply = await ask(server, "POST", PATH, CHAT)
    assert reply.error["message"] == "cartridge 'a' was killed"
    assert "secret" not in str(reply)


async def test_what_a_cartridge_says_is_bounded_and_acts_on_no_terminal() -> None:
    script = failing("X\x1b" * 5000, "input", "no\x1b[2J\n" * 3000 + "x" * 100_000, {"param": "p" * 9000})
    async with served(script) as server:
        reply = await ask(server, "POST", PATH, CHAT)
    assert reply.status == 400
    error = reply.error
    assert error["message"].startswith(r"no\x1b[2J" + "\n    no")
    assert all(word.replace("\n", "").isprintable() for word in error.values())
    assert (len(error["message"]) < 4000, len(error["code"]) < 200, len(error["param"])) == (True, True, 65)


async def test_the_detail_of_an_error_reaches_the_client() -> None:
    script = failing("QUEUE_FULL", "resource", "full", {"param": "n", "retryable": False})
    async with served(script) as server:
        reply = await ask(server, "POST", PATH, CHAT)
    assert reply.error["param"] == "n"
    assert reply.headers["x-should-retry"] == "false"


async def test_a_whole_answer_that_had_begun_is_not_paid_twice() -> None:
    async with served(failing("CARTRIDGE_DIED", "environment", "gone", after=1)) as server:
        reply = await ask(server, "POST", PATH, CHAT)
    assert (reply.status, reply.headers["x-should-retry"]) == (502, "false")


@both_links
@pytest.mark.parametrize("script", [failing("HANDLER_ERROR", "internal", "broke", after=3), dying(after=3)])
async def test_an_error_inside_a_stream_is_told_and_the_connection_aborted(link: str, script: Any) -> None:
    async with served(script, link) as server:
        reply = await ask(server, "POST", PATH, {**CHAT, "stream": True})
    assert (reply.status, reply.complete) == (200, False)
    assert set(reply.events[-1]) == {"error"}
    assert set(reply.events[-1]["error"]) == {"message", "type", "param", "code"}
    assert sum("error" in event for event in reply.events) == 1
    assert all(event["choices"][0]["finish_reason"] is None for event in reply.events[:-1])
    assert "[DONE]" not in reply.events


@pytest.mark.parametrize("script", [failing("HANDLER_ERROR", "internal", "broke", after=3), dying(after=3)])
async def test_the_official_client_raises_on_it(script: Any) -> None:
    def stream(client: OpenAI) -> None:
        for _ in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            pass

    async with served(script) as server:
        with pytest.raises(openai.APIError):
            await with_openai(server, stream)


@both_links
async def test_a_host_that_dies_before_the_answer(link: str) -> None:
    async with served(dying(), link) as server:
        reply = await ask(server, "POST", PATH, {**CHAT, "stream": True})
        assert (reply.status, reply.error["code"]) == (502, "master_died")
        assert reply.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("events", [[{"text": "a"}], [{"text": "a"}, {"finish": "stop"}], [{"picture": 1}, *FINISH]])
@pytest.mark.parametrize("late", [True, False])
async def test_an_answer_that_breaks_the_contract_is_never_a_success(stream: bool, events: Any, late: bool) -> None:
    async def script(request: ScriptedRequest) -> None:
        request.start()
        if late:  # else all is ready together, and nothing has been written yet
            await trio.sleep(0.02)
        await request.emit(*events)
        request.end()

    async with served(script) as server:
        reply = await ask(server, "POST", PATH, {**CHAT, "stream": stream})
    if stream and late:
        assert not reply.complete
        assert reply.events[-1]["error"]["code"] == "protocol_error"
        assert 'finish_reason":"stop' not in reply.body.decode()
    else:
        assert (reply.status, reply.error["code"]) == (502, "protocol_error")


async def test_an_error_after_a_silence_is_told_in_the_stream() -> None:
    async def script(request: ScriptedRequest) -> None:
        await request.body()
        await trio.sleep(0.1)
        request.fail("SPAWN_FAILED", "environment", "no such file")

    async with served(script, settings=GatewaySettings(commit_after=0.02)) as server:
        reply = await ask(server, "POST", PATH, {**CHAT, "stream": True})
        whole = await ask(server, "POST", PATH, CHAT)
    assert (reply.status, reply.complete) == (200, False)
    assert [event["error"]["code"] for event in reply.events] == ["spawn_failed"]
    assert whole.status == 503


async def test_an_unknown_model_is_told_with_those_that_are_served() -> None:
    async with served(TEXT, caps=[*model_caps("one"), *model_caps("two", "completion")]) as server:
        for reply in (
            await ask(server, "POST", PATH, {**CHAT, "model": "gpt-4"}),
            await ask(server, "GET", "/v1/models/gpt-4"),
        ):
            assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
            assert "'gpt-4'" in reply.error["message"]
            assert "one, two" in reply.error["message"]
        reply = await ask(server, "POST", PATH, {**CHAT, "model": "two"})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert "completion, not chat" in reply.error["message"]


async def test_a_gateway_without_hosts_says_so() -> None:
    async with served(TEXT, caps=[]) as server:
        reply = await ask(server, "POST", PATH, CHAT)
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert "no host offers a model" in reply.error["message"]


REFUSED: list[Any] = [
    # method, path, body, headers, status, code, words
    ("GET", "/", None, {}, 404, "unknown_url", "POST /v1/chat/completions"),
    ("GET", "/v1/models/", None, {}, 404, "unknown_url", "did you mean /v1/models? (there is a slash too many)"),
    ("GET", "/v1//models", None, {}, 404, "unknown_url", "did you mean /v1/models?"),
    ("POST", "/v1/chat/completions/", CHAT, {}, 404, "unknown_url", "did you mean /v1/chat/completions?"),
    ("POST", "/v1/v1/chat/completions", CHAT, {}, 404, "unknown_url", "the base URL has /v1 twice"),
    ("GET", "/health", None, {}, 404, "unknown_url", "did you mean /healthz?"),
    ("GET", "/v1/healthz/", None, {}, 404, "unknown_url", "did you mean /healthz?"),
    ("POST", "/chat/completions", CHAT, {}, 404, "unknown_url", "the base URL must end in /v1"),
    ("POST", "/v1/responses", {}, {}, 404, "unknown_url", "POST /v1/chat/completions"),
    ("GET", "/v1/nothing?key=sk-1", None, {}, 404, "unknown_url", "the routes are"),
    ("GET", "/_capdag/ps", None, {}, 404, "unknown_url", "the routes are"),
    ("POST", "/_capdag/reset/x", {}, {}, 404, "unknown_url", "the routes are"),
    ("GET", PATH, None, {}, 405, "method_not_allowed", "takes POST, not GET"),
    ("DELETE", "/v1/models", None, {}, 405, "method_not_allowed", "takes GET, not DELETE"),
    ("OPTIONS", PATH, None, {"origin": "https://evil.example"}, 405, "method_not_allowed", "takes POST"),
    ("POST", PATH, b"{", {"content-type": "application/json"}, 400, "invalid_json", "not valid JSON"),
    ("POST", PATH, b'{"a":"\xff"}', {}, 400, "invalid_json", "UTF-8"),
    ("POST", PATH, b" ", {}, 400, "invalid_json", "empty"),
    ("POST", PATH, {"messages": []}, {}, 400, "invalid_request", "messages"),
    ("POST", PATH, {"messages": MESSAGES}, {}, 400, "missing_required_parameter", "model is missing"),
    ("POST", PATH, CHAT, {"content-type": "text/plain"}, 415, "unsupported_media_type", "not 'text/plain'"),
    ("POST", PATH, CHAT, {"content-encoding": "gzip"}, 415, "unsupported_media_type", "gzip"),
    ("POST", PATH, b"x" * 5000, {}, 413, "request_too_large", "over 4,096 bytes"),
    ("POST", PATH, None, {"content-length": "99999999999"}, 413, "request_too_large", "body_limit"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "code", "words"), REFUSED)
async def test_what_is_refused_is_refused_in_one_form(
    method: str, path: str, body: Any, headers: dict[str, str], status: int, code: str, words: str
) -> None:
    async with served(TEXT, settings=GatewaySettings(body_limit=4096)) as server:
        if method == "POST" and headers.get("content-length"):
            headers = {"content-type": "application/json", **headers}
            reply = await head_only(server, path, headers)
        else:
            reply = await ask(server, method, path, body, headers)
        assert (reply.status, reply.error["code"]) == (status, code), reply.body
        assert words in reply.error["message"]
        assert reply.headers["x-request-id"]
        assert not any(name.startswith("access-control") for name in reply.headers)
        assert not server.host.requests


async def head_only(server: Served, path: str, headers: dict[str, str]) -> Reply:
    """Send a head that announces a body, and read the answer that comes without one."""
    http = await server.connect()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    await http.stream.send_all(f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode())
    http._parser.send(_request_without_body(path))
    try:
        return await http.reply()
    finally:
        await http.close()


def _request_without_body(path: str) -> Any:
    import h11

    return h11.Request(method="POST", target=path, headers=[("host", "localhost"), ("content-length", "1")])


async def test_a_body_over_the_default_limit_is_told_to_the_official_client() -> None:
    messages: Any = [{"role": "user", "content": "x" * (51 * 1024 * 1024)}]
    async with served(TEXT) as server:
        with pytest.raises(openai.APIStatusError) as caught:
            await with_openai(server, lambda client: client.chat.completions.create(model=MODEL, messages=messages))
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


@pytest.mark.parametrize(("path", "status"), [(PATH, 413), ("/nowhere", 404)])
async def test_a_refused_body_is_let_in_so_that_the_reply_is_not_lost(path: str, status: int) -> None:
    """A connection closed over bytes that nobody has read is reset: the client's next write fails."""
    async with served(TEXT, settings=GatewaySettings(body_limit=4096)) as server:
        http = await server.connect()
        await http.stream.send_all(
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {40 * 65_536}\r\n\r\n".encode()
        )
        for _ in range(40):
            await http.stream.send_all(b"x" * 65_536)
            await trio.sleep(0.002)
        answer = await http.stream.receive_some()
        await http.close()
        assert answer.startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254"])
async def test_on_loopback_a_foreign_host_name_is_refused(host: str) -> None:
    async with served(TEXT) as server:
        reply = await ask(server, "GET", "/v1/models", host=host)
        assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "127.8.8.8", "gw.lan"])
async def test_names_of_this_machine_are_taken(host: str) -> None:
    async with served(TEXT, settings=GatewaySettings(allowed_hosts=("gw.lan",))) as server:
        assert (await ask(server, "GET", "/v1/models", host=host)).status == 200


@pytest.mark.parametrize("host", ["", "a b", "<script>", "x" * 5000, "[::1", "é"])
async def test_a_host_that_is_no_name_is_refused_and_harms_nobody(host: str) -> None:
    async with served(TEXT) as server:
        http = await server.connect()
        await http.stream.send_all(f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode("latin-1"))
        with trio.fail_after(2):
            status = (await http.stream.receive_some()).split(b" ")[1]
        await http.close()
        assert status in ((b"200",) if not host else (b"403", b"400"))
        assert (await ask(server, "GET", "/healthz")).status == 200


UPGRADES = [
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZQ==\r\n",
    "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
]


@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_offer_of_another_protocol_is_passed_over_and_goes_around_no_guard(upgrade: str) -> None:
    async with served(TEXT) as server:
        for host, status in (("localhost", b"200"), ("evil.example", b"403")):
            answer = await raw(server, f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n{upgrade}\r\n")
            assert answer.startswith(b"HTTP/1.1 " + status)


BOTH_FRAMINGS = "content-length: 5\r\ntransfer-encoding: chunked\r\n"
SMUGGLED = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("GARBAGE\r\n\r\n", b"400"),
        ("GET /v1/models HTTP/1.1\r\n\r\n", b"400"),
        (f"GET / HTTP/1.1\r\nhost: localhost\r\nx: {'y' * 70_000}", b"431"),
        (f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n", b"400"),
        (f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {'9' * 5000}\r\n\r\n", b"400"),
        (f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\n{BOTH_FRAMINGS}\r\n0\r\n\r\n{SMUGGLED}", b"400"),
        (f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n{BOTH_FRAMINGS}\r\n", b"400"),
    ],
)
async def test_what_is_not_http_is_told_in_the_same_form(sent: str, status: bytes) -> None:
    async with served(TEXT) as server:
        answer = await raw(server, sent, closes=True)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert b"x-request-id: req_" in head
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert (await ask(server, "GET", "/healthz")).status == 200


@pytest.mark.parametrize(("length", "first"), [(4097, b"413"), (99999999999, b"413"), (4096, b"100")])
async def test_who_asks_before_sending_a_body_that_is_too_large_is_not_told_to_go_on(length: int, first: bytes) -> None:
    async with served(TEXT, settings=GatewaySettings(body_limit=4096)) as server:
        answer = await raw(
            server,
            f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"expect: 100-continue\r\ncontent-length: {length}\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 " + first)


async def raw(server: Served, sent: str, *, closes: bool = False) -> bytes:
    """Send bytes and return what comes first, or all that comes until the server closes."""
    http = await server.connect()
    answer = b""
    with trio.fail_after(3):
        await http.stream.send_all(sent.encode("latin-1"))
        while piece := await http.stream.receive_some():
            answer += piece
            if not closes:
                break
    await http.close()
    return answer


async def test_a_fault_of_ours_is_told_without_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async with served(TEXT) as server:
        server.switch.capabilities = None  # type: ignore[assignment,method-assign]
        reply = await ask(server, "GET", "/v1/models")
        assert (reply.status, reply.error["code"]) == (500, "internal_error")
        assert reply.headers["x-request-id"] in reply.error["message"]
        assert "NoneType" not in reply.body.decode()
    assert any(record.exc_info for record in caplog.records if reply.headers["x-request-id"] in record.message)
    caplog.clear()


async def test_no_secret_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "sk-canary-1f2e"
    headers = {"authorization": f"Bearer {canary}"}
    async with served(failing("HANDLER_ERROR", "internal", "broke", after=1)) as server:
        for body in ({**CHAT, "user": canary}, {**CHAT, "model": canary}, {**CHAT, "stream": canary}, canary.encode()):
            await ask(server, "POST", f"{PATH}?key={canary}", body, headers)
        await ask(server, "POST", PATH, {**CHAT, "user": canary, "stream": True}, headers)
    lines = [record.getMessage() for record in caplog.records if record.name == "capdag.gateway.access"]
    assert len(lines) == 5
    assert f"POST {PATH} 200 aborted" in lines[-1]
    assert canary not in caplog.text


async def test_an_access_line_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(TEXT) as server:
        await ask(server, "GET", "/x%0aGET%20/forged")
    lines = [record.getMessage() for record in caplog.records if record.name == "capdag.gateway.access"]
    assert [line.split(" ")[1] for line in lines] == ["/x%0aGET%20/forged"]


async def test_http_1_0_and_head_are_served() -> None:
    async with served(TEXT) as server:
        http = await server.connect()
        await http.stream.send_all(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := await http.stream.receive_some():
            answer += piece
        await http.close()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"status":"ready","models":1}')
        head = await trio.to_thread.run_sync(lambda: httpx.head(f"{server.base_url}/models"))
        assert (head.status_code, head.content) == (200, b"")
