"""The numbered laws of protocol-spec/links.md, and the tests that name them in their docstrings, agree."""

from __future__ import annotations

from tests.laws import Page

PAGE = Page("links.md", "K", "links", "faults", "transport")


def test_every_law_has_one_number() -> None:
    PAGE.check_numbers(20)


def test_every_law_is_named_by_a_test_of_its_section_and_no_other_law_is() -> None:
    PAGE.check_tests()


def test_every_test_of_the_page_is_there() -> None:
    PAGE.check_modules()
