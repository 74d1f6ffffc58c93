"""`capdag explain`: what is asked, who serves it, and what keeps the others out."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from capdag.cli import main
from capdag.cli._candidates import Candidate
from capdag.cli._explaining import explain_request
from capdag.urn import CapUrn
from tests.cli.servers import capdag

UPPER = shlex.join([sys.executable, str(Path(__file__).with_name("upper.py"))])
USER = {"role": "user", "content": "hi"}
CANDIDATES = [
    Candidate(owner, CapUrn.parse(text))
    for owner, text in (
        ("small", "cap:chat;in=media:record;model=s;out=media:list"),
        ("large", "cap:chat;in=media:record;model=l;out=media:list;tools"),
        ("ocr", "cap:in=media:image;ocr"),
        ("identity", "cap:effect=none"),
    )
]


def run(*arguments: str, data: str = "") -> Result:
    return CliRunner().invoke(main, ["explain", *arguments], input=data, prog_name="capdag")


def test_the_order_of_choice_and_every_reason_are_told() -> None:
    lines, served = explain_request(CANDIDATES, CapUrn.parse("cap:chat;in=media:record;!vision"))
    assert served
    assert "\n".join(lines) == (
        """\
request: cap:chat;in=media:record;!vision
served by 2 of 4 caps; nearest first

  1. small
     cap:chat;in=media:record;model=s;out=media:list
     let in by effect declared, tag chat, tag !vision (not there), in record
     guaranteed; its specificity is 19,999 above the request's

  2. large
     cap:chat;in=media:record;model=l;out=media:list;tools
     let in by effect declared, tag chat, tag !vision (not there), in record
     guaranteed; its specificity is 20,001 above the request's

  -  ocr
     cap:in=media:image;ocr
     kept out by tag chat (not there), in image (the request does not say)

  -  identity
     cap:effect=none
     kept out by effect declared (it has effect none), tag chat (not there)"""
    )


@pytest.mark.parametrize(
    ("request_text", "standing"),
    [
        ("cap:in=media:image;ocr", "exact; its specificity is equal to the request's"),
        ("cap:!chat;in=media:image;ocr", "exact; its specificity is 5 below the request's"),
        ("cap:ocr", "exact; its specificity is 200 above the request's"),
    ],
)
def test_the_distance_that_decides_is_told(request_text: str, standing: str) -> None:
    lines, _ = explain_request(CANDIDATES, CapUrn.parse(request_text))
    assert lines[2:6] == ["\n  1. ocr", "     cap:in=media:image;ocr", lines[4], f"     {standing}"]


def test_what_nobody_serves_is_explained_nearest_first() -> None:
    lines, served = explain_request(CANDIDATES, CapUrn.parse("cap:chat;model=l;vision"))
    assert not served
    assert [line.split()[-1] for line in lines if line.startswith("\n")] == ["large", "small", "ocr", "identity"]
    assert "     kept out by tag model=l (it has model=s), tag vision (not there)" in lines


def test_what_asks_nothing_is_served_by_all() -> None:
    lines, served = explain_request(CANDIDATES, CapUrn.parse("cap:?effect;?x"))
    assert served
    assert lines.count("     let in by a request that asks nothing") == len(CANDIDATES)


def test_the_candidates_are_those_of_a_server(tmp_path: Path) -> None:
    found = run("cap:echo", "--models", str(tmp_path))
    assert found.exit_code == 0, found.output
    assert "\n  1. echo\n     cap:echo;in=media:octets;out=media:octets\n" in found.output
    assert "\n  -  identity\n     cap:effect=none\n" in found.output
    found = run("cap:sing", "--models", str(tmp_path))
    assert found.exit_code == 1
    assert "served by 0 of " in found.output


def test_a_cartridge_that_cannot_tell_its_caps_is_named(tmp_path: Path) -> None:
    found = run("cap:sing", "--models", str(tmp_path), "--cartridge", f"{sys.executable} -c 'raise SystemExit(3)'")
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].endswith("exited with status 3 before it was ready")


def chat(folder: Path, model: Path, **fields: Any) -> tuple[Result, str]:
    """Explain a body; returns what was told, and its line of verdicts on the model's chat cap."""
    body = folder / "body.json"
    body.write_text(json.dumps({"model": model.stem.upper(), "messages": [USER], **fields}))
    found = run("--chat", str(body), "--models", str(model.parent))
    candidate = f"llama-cpp/{model.stem.lower()}"
    return found, found.output.partition(f"{candidate}\n     cap:chat;")[2].splitlines()[1].strip()


def test_a_chat_body_is_explained_as_the_gateway_asks_for_it(tmp_path: Path, alphabet_model: Path) -> None:
    found, verdict = chat(tmp_path, alphabet_model, response_format={"type": "json_object"})
    assert found.exit_code == 0, found.output
    assert ";json-schema;model=" in found.output.splitlines()[0]
    assert verdict.startswith("let in by effect declared, tag chat, tag json-schema, tag model=")
    found, verdict = chat(tmp_path, alphabet_model, tools=[{"type": "function", "function": {"name": "f"}}])
    assert found.exit_code == 1
    assert verdict == "kept out by tag tools (not there)"


def test_a_chat_body_may_come_from_stdin(tmp_path: Path) -> None:
    found = run("--chat", "-", "--models", str(tmp_path), data=json.dumps({"model": "M x", "messages": [USER]}))
    assert found.exit_code == 1
    assert found.output.splitlines()[0].startswith("request: cap:chat;in=")
    assert ";model=m-x;" in found.output


def test_what_a_server_would_complain_of_is_told_too(tmp_path: Path) -> None:
    config = tmp_path / "capdag.toml"
    config.write_text("[models.overrides.ghost]\nslots = 2\n")
    found = run("cap:echo", "--config", str(config), "--models", str(tmp_path))
    assert found.output.splitlines()[-1].startswith('models.overrides."ghost" is for no model that is served')


def test_a_cartridge_that_tells_nothing_beforehand_is_asked(tmp_path: Path) -> None:
    done = capdag(tmp_path / "run", "explain", "cap:upper", "--cartridge", UPPER)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\n  1. upper\n     cap:in=media:octets;out=media:octets;upper\n" in done.stdout
    assert b"\n  -  identity\n     cap:effect=none\n" in done.stdout
    assert list((tmp_path / "run" / "capdag").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give a cap URN, or --chat FILE: one of the two"),
        (["cap:chat", "--chat", "x"], 2, "give a cap URN, or --chat FILE: one of the two"),
        (["chat"], 2, "Error: 'chat' is no cap URN: end of 'chat': start with a prefix and a colon"),
        (["cap:a=b=c"], 2, "Error: 'cap:a=b=c' is no cap URN: character 7 ('=') of 'cap:a=b=c'"),
        (["--chat", "no-such-file"], 2, "Error: cannot read no-such-file: No such file or directory"),
        (["--chat", "-"], 1, "Error: model must be string, not 5"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(arguments: list[str], code: int, message: str) -> None:
    found = run(*arguments, data='{"model": 5}')
    assert found.exit_code == code
    assert message in found.output
    assert isinstance(found.exception, SystemExit)
