"""Every numbered law of protocol-spec/wire.md has a test, and the tests named here exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "protocol-spec" / "wire.md").read_text()

HERE = "tests/wire/"
LAWS: dict[int, tuple[str, ...]] = {
    1: (
        "test_framing.py::test_streams_end_as_the_vectors_say",
        "test_states.py::test_what_cannot_be_read_ends_the_link",
    ),
    2: ("test_framing.py::test_the_writer_refuses_a_body_over_max_frame",),
    3: ("test_framing.py::test_good_frames_before_a_bad_length_are_delivered", "tests/cartridge/test_process.py"),
    4: (
        "test_codec.py::test_invalid_bodies_are_refused_as_recommended",
        "test_codec.py::test_a_tag_anywhere_is_refused",
        "test_forms.py::test_damaged_bodies_read_the_same_whether_their_form_is_known_or_not",
        "test_flaws.py::test_a_body_that_cannot_be_decoded_is_told_by_its_key",
    ),
    5: ("test_codec.py::test_null_where_a_chunk_needs_a_value_is_missing",),
    6: ("test_codec.py::test_unknown_keys_survive_a_round_trip",),
    7: ("test_codec.py::test_checksums", "test_streams.py::test_bad_chunks"),
    8: ("tests/cartridge/test_output.py", "tests/host/test_bounds.py"),
    9: (
        "test_states.py::test_the_first_frame_of_each_side_is_the_only_one_of_its_kind",
        "test_handshake.py::test_limits_may_not_be_reduced_below_the_least_or_what_was_offered",
    ),
    10: ("test_states.py::test_before_policy_only_identity_is_served",),
    11: ("test_states.py::test_a_link_judges_every_frame_in_every_state",),
    12: ("test_states.py::test_what_a_cartridge_must_never_send_ends_its_link", "tests/cartridge/test_handshake.py"),
    13: (
        "test_handshake.py::test_a_bad_manifest_names_its_fault",
        "test_handshake.py::test_a_manifest_that_is_too_long_is_refused",
    ),
    14: ("test_states.py::test_what_a_cartridge_must_never_send_ends_its_link",),
    15: (
        "test_states.py::test_a_request_judges_every_frame_in_every_state",
        "tests/relay/test_requests.py",
        "tests/cartridge/test_requests.py",
    ),
    16: (
        "test_states.py::test_only_a_terminal_of_the_handler_ends_a_request_and_it_always_does",
        "tests/relay/test_table.py",
    ),
    17: ("test_states.py::test_nothing_survives_a_terminal", "tests/host/test_machine.py"),
    18: ("test_outsider.py::test_bytes_come_back",),
    19: ("test_states.py::test_a_request_judges_every_frame_in_every_state",),
    20: ("test_meta.py::test_only_exit_code_zero_is_success", "test_streams.py::test_stream_life"),
    21: ("test_streams.py::test_the_count_of_a_stream_is_checked",),
    22: (
        "test_answers.py::test_a_stream_that_is_no_output_is_refused",
        "test_answers.py::test_an_output_that_never_came_is_missed_at_the_end",
        "test_states.py::test_a_stream_judges_every_event_in_every_state",
        "test_streams.py::test_bad_chunks",
    ),
    23: ("test_traces.py::test_the_machines_accept_the_conversation",),
    24: ("tests/host/test_edge.py",),
    25: (
        "test_streams.py::test_a_sequence_item_over_several_chunks",
        "test_streams.py::test_an_item_begins_on_a_fresh_chunk",
    ),
    26: (
        "test_streams.py::test_any_fragment_gives_items_or_a_remote_error",
        "test_unsendable.py::test_a_value_without_bytes_is_refused_wherever_it_stands",
        "test_flaws.py::test_simple_values_are_no_values",
    ),
    27: ("test_states.py::test_a_sender_waits_without_credit",),
    28: (
        "test_streams.py::test_grants_come_at_half_the_window",
        "test_streams.py::test_unequal_windows_never_starve_when_the_receiver_flushes",
    ),
    29: ("test_streams.py::test_a_sequence_item_over_several_chunks",),
    30: ("test_streams.py::test_a_grant_never_lifts_the_sender_above_its_window",),
    31: ("test_streams.py::test_over_the_window_is_a_credit_violation",),
    32: ("tests/cartridge/test_cancel.py", "tests/relay/test_cancel.py"),
    33: (
        "test_sequence.py::test_seq_numbers_match_the_vectors",
        "test_traces.py::test_seq_counts_from_0_in_each_flow",
    ),
    34: ("test_sequence.py::test_the_reorder_buffer_matches_the_vectors",),
    35: ("tests/host/test_machine.py", "tests/host/test_death.py", "tests/relay/test_death.py"),
    36: ("test_sequence.py::test_seq_numbers_match_the_vectors",),
    37: ("test_meta.py::test_an_err_that_lacks_what_it_needs_is_refused_never_guessed",),
    38: ("test_meta.py::test_cancel_reasons", "tests/cartridge/test_cancel.py"),
    39: ("test_states.py::test_a_request_judges_every_frame_in_every_state", "tests/relay/test_cancel.py"),
    40: ("tests/relay/test_cancel.py",),
    41: ("tests/host/test_cancel.py",),
    42: ("tests/host/test_calls.py",),
    43: (
        "test_states.py::test_a_request_of_the_other_end_under_the_same_id_is_another_request",
        "tests/host/test_calls.py",
    ),
    44: ("tests/host/test_health.py", "tests/cartridge/test_capacity.py"),
    45: ("tests/host/test_health.py",),
    46: (
        "test_states.py::test_the_first_frame_of_each_side_is_the_only_one_of_its_kind",
        "tests/relay/test_attaching.py",
    ),
    47: ("tests/relay/test_peer_calls.py",),
    48: ("test_codec.py::test_the_routing_id_splice_reads_back",),
    49: ("tests/transport/test_links.py", "tests/host/test_edge.py"),
    50: ("test_requests.py::test_a_row_is_registered_once_and_taken_whole", "tests/relay/test_table.py"),
    51: ("test_requests.py::test_stragglers_are_told_from_drops", "tests/test_spec.py"),
    52: ("tests/host/test_death.py",),
    53: ("tests/host/test_life.py",),
    54: ("tests/transport/test_links.py",),
    55: ("tests/host/test_flows.py", "tests/relay/test_credit.py"),
}
"""Law: the tests that would fail if it were broken; of other rooms the file."""


def test_every_law_has_a_test() -> None:
    assert list(LAWS) == [int(number) for number in re.findall(r"^- \*\*L(\d+)\*\* ", PAGE, re.MULTILINE)]


@pytest.mark.parametrize("named", sorted({named for tests in LAWS.values() for named in tests}))
def test_the_test_exists(named: str) -> None:
    file, _, function = named.partition("::")
    text = (ROOT / (file if "/" in file else HERE + file)).read_text()
    assert not function or re.search(rf"^(async )?def {function}\(", text, re.MULTILINE)
