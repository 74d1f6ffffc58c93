from __future__ import annotations

import math
from typing import Any

import pytest

from capdag.errors import AttributionClass, RemoteProtocolError
from capdag.wire import (
    CancelReason,
    Failure,
    LogRecord,
    cancel_frame,
    end_frame,
    err_frame,
    failure_of,
    failure_of_end,
    inspect,
    is_success,
    log_frame,
    read_cancel,
    read_failure,
    read_log,
    view_of,
)
from tests.vectors import load, named

ROWS = {row["name"]: row for row in load("wire/accessors")}


def meta_of(name: str) -> Any:
    return inspect(bytes.fromhex(ROWS[name]["hex"])).meta


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row["name"].startswith("err_")], ids=named)
def test_an_err_that_lacks_what_it_needs_is_refused_never_guessed(row: dict[str, Any]) -> None:
    meta = meta_of(row["name"])
    if row["name"] == "err_int_arg":
        assert read_failure(meta) == ("X", "input", "m", None)
        return
    with pytest.raises(RemoteProtocolError):
        read_failure(meta)
    assert failure_of(meta).code == "PROTOCOL_VIOLATION"


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row["name"].startswith("log_")], ids=named)
def test_logs(row: dict[str, Any]) -> None:
    record = read_log(meta_of(row["name"]))
    assert record.level == row["reads"]["log_level"]
    assert record.progress == row["reads"]["log_progress"]


@pytest.mark.parametrize(
    ("progress", "read"),
    [
        (0, 0.0), (0.0, 0.0), (0.5, 0.5), (1, 1.0), (1.0, 1.0), (7.0, None), (-0.1, None), (1.0001, None),
        (math.nan, None), (math.inf, None), ("half", None), (10**30, None),
    ],
)  # fmt: skip
def test_progress_is_a_number_from_0_to_1_or_none(progress: object, read: float | None) -> None:
    """L37."""
    assert read_log({"level": "progress", "message": "m", "progress": progress}).progress == read


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row["name"].startswith("end_")], ids=named)
def test_only_exit_code_zero_is_success(row: dict[str, Any]) -> None:
    code = row["reads"]["exit_code"]
    assert is_success(meta_of(row["name"])) == (code == 0 and code is not False)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"exit_code": 3, "message": "three"}, "three"),
        ({"exit_code": "0", "message": ["x"]}, "the handler ended with exit_code '0'"),
        ({"exit_code": b"x" * 1000}, "the handler ended with exit_code b'xxxxx"),
        ({"message": ""}, "the handler ended with no exit_code"),
    ],
)
def test_an_end_that_says_no_success_is_a_failure(meta: dict[str, Any], message: str) -> None:
    failure = failure_of_end(meta)
    assert failure is not None
    assert (failure.code, failure.attribution) == ("HANDLER_ERROR", "internal")
    assert failure.message.startswith(message)
    assert len(failure.message) < 200
    assert failure_of_end({"exit_code": 0, "message": "done"}) is None


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row["name"].startswith("cancel_")], ids=named)
def test_cancel_reasons(row: dict[str, Any]) -> None:
    wanted = row["reads"]["cancel_reason"]
    reason = read_cancel(meta_of(row["name"]))
    assert (reason.code, reason.attribution) == (wanted["terminal_code"], wanted["terminal_class"])


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row["name"].startswith("credit_")], ids=named)
def test_grants(row: dict[str, Any]) -> None:
    view = inspect(bytes.fromhex(row["hex"]))
    assert view.fields[19] == row["reads"]["credit_count"]
    assert view.meta.get("credit_dir") == row["reads"]["credit_direction"]


@pytest.mark.parametrize(
    ("told", "detail"),
    [
        ({"arg_urn": "media:a"}, {"param": "media:a"}),
        ({"arg_urn": "media:a", "detail": {"limit": 1}}, {"param": "media:a", "limit": 1}),
        ({"arg_urn": "media:a", "detail": {"param": "x"}}, {"param": "x"}),
        ({"arg_urn": "", "detail": {"limit": 1}}, {"limit": 1}),
        ({"arg_urn": 7}, None),
        ({"arg_urn": "media:a", "detail": "text"}, {"param": "media:a"}),
    ],
)
def test_the_argument_that_an_err_blames_is_the_param_of_its_detail(told: Any, detail: Any) -> None:
    meta = {"code": "X", "message": "m", "attribution_class": "input", **told}
    assert read_failure(meta) == Failure("X", AttributionClass.INPUT, "m", detail)


def test_round_trips() -> None:
    failure = Failure("X", AttributionClass.INPUT, "why", {"limit": 3, "seen": 4})
    assert read_failure(view_of(err_frame(1, failure, xid=2, seq=7)).meta) == failure
    for record in (
        LogRecord("progress", "half", 0.5),
        LogRecord("info", "m", None, AttributionClass.USER, {"position": 2}),
    ):
        assert read_log(view_of(log_frame(1, record)).meta) == record
    reason = CancelReason("ABORTED_COLLATERAL", AttributionClass.RESOURCE, "a neighbour failed")
    assert read_cancel(view_of(cancel_frame(1, reason)).meta) == reason
    assert is_success(view_of(end_frame(1)).meta)
