"""From events to OpenAI's forms: golden chunks, whole bodies, and answers that break the contract."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capdag.errors import RequestFailedError
from capdag.gateway.render import Heading, StreamedAnswer, WholeAnswer
from capdag.gateway.shapes import CHAT, COMPLETION, Shape

HEADING = Heading("chatcmpl-1", 1, "m")
HEAD = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
USAGE = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
STOP = {"finish": "stop"}


def streamed(*events: Any, shape: Shape = CHAT, choices: int = 1, usage: bool = False) -> str:
    answer = StreamedAnswer(shape, HEADING, choices, include_usage=usage)
    return (b"".join(answer.render([event]) for event in events) + answer.end()).decode()


def whole(*events: Any, shape: Shape = CHAT, choices: int = 1) -> Any:
    answer = WholeAnswer(shape, HEADING, choices)
    answer.take(events)
    return json.loads(answer.body())


def deltas(text: str) -> list[Any]:
    """Return (index, delta, finish_reason) of every chunk with choices."""
    found = []
    for line in text.split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            found.append((choice["index"], choice["delta"], choice["finish_reason"]))
    return found


def test_a_plain_stream_byte_for_byte() -> None:
    assert streamed({"text": "Hé"}, {"text": ' "x"\n'}, STOP, USAGE, usage=True) == (
        f'data: {HEAD}[{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}[{{"index":0,"delta":{{"content":"Hé"}},"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}[{{"index":0,"delta":{{"content":" \\"x\\"\\n"}},"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\n'
        f'data: {HEAD}[],"usage":{{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_the_fast_path_and_the_careful_one_write_the_same() -> None:
    texts = ["a", "é\u2028", "\0", '"\\', "😀", "\ud83d".encode("utf-8", "replace").decode()]
    fast = StreamedAnswer(CHAT, HEADING, 1, include_usage=False)
    careful = StreamedAnswer(CHAT, HEADING, 1, include_usage=False)
    together = fast.render([{"text": text} for text in texts])
    assert together == b"".join(careful.render([{"text": text, "choice": 0}]) for text in texts)


def test_a_model_named_like_the_mark_of_the_fast_path_keeps_its_name() -> None:
    answer = StreamedAnswer(CHAT, Heading("i", 1, "\0"), 1, include_usage=False)
    chunks = answer.render([{"text": "a"}, {"text": "b"}]).decode().split("\n\n")[:-1]
    assert [json.loads(chunk[6:])["model"] for chunk in chunks] == ["\0"] * 3


def test_line_separators_are_escaped_everywhere() -> None:
    tool = {"tool": {"index": 0, "name": "f", "arguments": '"x\u2028\u2029\x85"'}}
    text = streamed({"text": "a\u2028b\u2029c\x85d"}, tool, STOP, USAGE)
    assert not {"\u2028", "\u2029", "\x85"} & set(text)
    assert deltas(text)[1][1] == {"content": "a\u2028b\u2029c\x85d"}
    assert deltas(text)[3][1]["tool_calls"][0]["function"]["arguments"] == '"x\u2028\u2029\x85"'


@pytest.mark.parametrize("usage", [True, False])
def test_usage_is_said_once_and_only_if_asked(usage: bool) -> None:
    text = streamed({"text": "a"}, STOP, {**USAGE, "timings": {"ms": 1}}, usage=usage)
    assert text.count("usage") == text.count("timings") == int(usage)
    assert text.endswith("data: [DONE]\n\n")


def test_usage_keeps_its_details() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    assert (
        whole(STOP, {"usage": {**USAGE["usage"], **details}, "timings": {"ms": 1}}).items()
        >= {
            "usage": {**USAGE["usage"], "total_tokens": 5, **details},
            "timings": {"ms": 1},
        }.items()
    )


def test_the_first_heartbeat_opens_the_choice_and_the_role_is_not_said_again() -> None:
    answer = StreamedAnswer(CHAT, HEADING, 1, include_usage=False)
    text = answer.heartbeat() + answer.heartbeat() + answer.render([{"text": "a"}, STOP, USAGE]) + answer.end()
    assert [delta for _, delta, _ in deltas(text.decode())] == [
        {"role": "assistant", "content": ""},
        {},
        {"content": "a"},
        {},
    ]


def test_reasoning_goes_under_its_own_name() -> None:
    events = [{"reasoning": "hm"}, {"text": "a"}, STOP, USAGE]
    assert [delta for _, delta, _ in deltas(streamed(*events))][1:3] == [{"reasoning_content": "hm"}, {"content": "a"}]
    message = whole(*events)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


def test_tool_calls_follow_the_rules_of_fragments() -> None:
    events = [
        {"tool": {"index": 0, "id": "c0", "name": "f", "arguments": '{"a":'}},
        {"tool": {"index": 0, "id": "c0", "name": "f", "arguments": "1}"}},
        {"tool": {"index": 1, "id": "c1", "name": "g"}},
        {"finish": "stop"},
        USAGE,
    ]
    found = deltas(streamed(*events))
    calls = [delta["tool_calls"] for _, delta, _ in found[1:-1]]
    assert calls == [
        [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a":'}}],
        [{"index": 0, "function": {"arguments": "1}"}}],
        [{"index": 1, "id": "c1", "type": "function", "function": {"name": "g", "arguments": ""}}],
        [{"index": 1, "function": {"arguments": "{}"}}],
    ]
    assert found[-1] == (0, {}, "tool_calls")
    choice = whole(*events)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_a_tool_call_without_id_gets_one() -> None:
    calls = whole({"tool": {"index": 0, "name": "f"}}, STOP, USAGE)["choices"][0]["message"]["tool_calls"]
    assert calls[0]["id"].startswith("call_")


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{"tool": {"index": 0, "name": "f"}}, {"finish": "stop"}], "tool_calls"),
        ([{"text": "a"}, {"finish": "tool_calls"}], "stop"),
        ([{"text": "a"}, {"finish": "length"}], "length"),
        ([{"tool": {"index": 0, "name": "f", "arguments": '{"a": "cu'}}, {"finish": "length"}], "length"),
        ([{"tool": {"index": 0, "name": "f", "arguments": "{}"}}, {"finish": "length"}], "tool_calls"),
        ([{"text": "a"}, {"finish": "content_filter"}], "content_filter"),
    ],
)
def test_the_finish_reason_follows_from_what_was_sent(events: list[Any], reason: str) -> None:
    assert deltas(streamed(*events, USAGE))[-1][2] == reason
    assert whole(*events, USAGE)["choices"][0]["finish_reason"] == reason


def test_choices_are_first_seen_in_order_and_each_finishes_once() -> None:
    events = [{"text": "b", "choice": 1}, {"text": "a"}, {"finish": "stop", "choice": 1}, {"finish": "length"}, USAGE]
    found = deltas(streamed(*events, choices=2))
    assert [index for index, delta, _ in found if "role" in delta] == [0, 1]
    assert [(index, reason) for index, _, reason in found if reason] == [(0, "length"), (1, "stop")]
    texts = [choice["message"]["content"] for choice in whole(*events, choices=2)["choices"]]
    assert texts == ["a", "b"]


def test_logprobs_stay_with_their_text() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    events = [{"text": "a", "logprobs": {"content": [token]}}, {"text": "b", "logprobs": [token]}, STOP, USAGE]
    chunk = json.loads(streamed(*events).split("\n\n")[1][6:])
    assert chunk["choices"][0]["logprobs"] == {"content": [token]}
    assert whole(*events)["choices"][0]["logprobs"] == {"content": [token, token]}


def test_completions_have_logprobs_in_the_older_form() -> None:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -0.5, "top_logprobs": [{"token": "z", "logprob": -2.0}]}

    events = [{"text": "ab"}, {"text": "cd", "logprobs": [token("c"), token("d")]}, STOP, USAGE]
    events.insert(2, {"text": "e", "logprobs": {"content": [token("e")]}})
    chunks = [json.loads(event[6:])["choices"][0] for event in streamed(*events, shape=COMPLETION).split("\n\n")[:4]]
    assert [chunk["logprobs"] and chunk["logprobs"]["text_offset"] for chunk in chunks] == [None, [2, 3], [4], None]
    assert chunks[1]["logprobs"] == {
        "tokens": ["c", "d"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"z": -2.0}, {"z": -2.0}],
        "text_offset": [2, 3],
    }
    assert whole(*events, shape=COMPLETION)["choices"][0]["logprobs"]["tokens"] == ["c", "d", "e"]


def test_completions_have_their_own_form() -> None:
    events = [{"text": "a"}, {"text": "b"}, {"finish": "length"}, USAGE]
    heading = '{"id":"chatcmpl-1","object":"text_completion","created":1,"model":"m","choices":'
    assert streamed(*events, shape=COMPLETION) == (
        f'data: {heading}[{{"index":0,"text":"a","logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {heading}[{{"index":0,"text":"b","logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {heading}[{{"index":0,"text":"","logprobs":null,"finish_reason":"length"}}]}}\n\n'
        "data: [DONE]\n\n"
    )
    assert whole(*events, shape=COMPLETION) == {
        "id": "chatcmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_an_empty_answer_is_an_answer() -> None:
    assert whole(STOP, USAGE)["choices"][0]["message"] == {"role": "assistant", "content": ""}
    assert [found[1:] for found in deltas(streamed(STOP, USAGE))] == [
        ({"role": "assistant", "content": ""}, None),
        ({}, "stop"),
    ]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"text": "a"}, USAGE], "without finish"),
        ([{"text": "a"}], "without finish"),
        ([{"text": "a"}, STOP], "without usage"),
        ([STOP, STOP, USAGE], "after its finish"),
        ([STOP, {"text": "a"}, USAGE], "after its finish"),
        ([STOP, USAGE, {"text": "a"}], "after usage"),
        ([{"finish": "eos"}], "content_filter, length, stop, tool_calls"),
        ([{"text": 5}], "text is int"),
        (["a"], "an event is str"),
        ([{"picture": b""}], "picture"),
        ([{"text": "a", "choice": 1}], "choice 1; 1 were asked for"),
        ([{"text": "a", "choice": True}], "choice True"),
        ([{"tool": {"index": 1, "name": "f"}}], "index 1 where 0 was due"),
        ([{"tool": {"index": 0}}], "needs its name"),
        ([{"tool": {"index": 0, "name": "f", "arguments": {"a": 1}}}], "arguments are dict"),
        (
            [{"tool": {"index": i, "name": "f", "arguments": "1"}} for i in (0, 1, 0)],
            "index 0 where 1 or 2 was due",
        ),
        ([STOP, {"usage": {"prompt_tokens": 1}}], "completion_tokens"),
        ([STOP, {"usage": None}], "usage must be a map"),
        ([{"text": "a", "logprobs": {"tokens": []}}], "logprobs must be a map"),
        ([{"text": "a", "logprobs": ["x"]}], "logprobs must be a map"),
        ([{"text": "a", "logprobs": [{None: 1}]}], "as JSON has them"),
        ([{"text": "a", "logprobs": [{"token": b"a"}]}], "as JSON has them"),
        ([{"finish": ["stop"]}], "finish is ['stop']"),
        ([{"finish": {"stop": 1}}], "finish is {'stop': 1}"),
        ([STOP, {"usage": {"prompt_tokens": -1, "completion_tokens": 1}}], "integers from 0 on"),
        ([STOP, {"usage": {**USAGE["usage"], True: 1}}], "maps that JSON can hold"),
        ([STOP, {"usage": {**USAGE["usage"], "x": [{None: 1}]}}], "maps that JSON can hold"),
        ([STOP, {**USAGE, "timings": {"x": b""}}], "maps that JSON can hold"),
    ],
)
def test_a_broken_answer_fails_the_request(events: list[Any], words: str) -> None:
    for read in (streamed, whole):
        with pytest.raises(RequestFailedError) as caught:
            read(*events)
        assert caught.value.code == "PROTOCOL_ERROR"
        assert words in caught.value.message


def test_completions_take_text_only() -> None:
    with pytest.raises(RequestFailedError):
        whole({"tool": {"index": 0, "name": "f"}}, STOP, USAGE, shape=COMPLETION)


def test_tool_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capdag.gateway.answer.TOOLS_LIMIT", 1000)
    events = [{"tool": {"index": 0, "name": "f", "arguments": "1" * 300}}] + [
        {"tool": {"index": 0, "arguments": "2"}}
    ] * 9
    assert "222222222" in whole(*events, STOP, USAGE)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    for render in (streamed, whole):
        with pytest.raises(RequestFailedError, match="its tool calls are over 1,000 bytes"):
            render(*events, *events[1:] * 2, STOP, USAGE)
