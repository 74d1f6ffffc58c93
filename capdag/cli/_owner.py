"""Who owns the import name `capdag` in this environment.

The public package of that name and this one install into the same folder: with both, modules of one may run with
modules of the other. Contract: "The command and the machine".
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

from capdag.errors import AttributionClass, CapdagError


class MixedPackagesError(CapdagError):
    """Another distribution owns our import name here."""

    attribution = AttributionClass.ENVIRONMENT


def check_owner() -> None:
    """Refuse an environment that has the public package too. Raises MixedPackagesError."""
    try:
        other = distribution("capdag")
    except PackageNotFoundError:
        return
    raise MixedPackagesError(
        f"the package capdag {other.version} is installed in this environment ({other.locate_file('')}); it owns the"
        " same import name as capdag-trio, and the two cannot share one. Install capdag-trio in an environment of its"
        " own, or remove the other (pip uninstall capdag) and install capdag-trio again (--force-reinstall)"
    )
