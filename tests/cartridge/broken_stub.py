"""A cartridge whose engine is missing."""

import an_engine_that_is_not_installed  # type: ignore[import-not-found]  # noqa: F401
