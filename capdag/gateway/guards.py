"""What a request must be before a route looks at it, and the errors of HTTP itself."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from .connection import GatewayRequest
from .errors import ApiError, bad_request

CHAT_ROUTE = "POST /v1/chat/completions"
_ROUTES = f"{CHAT_ROUTE}, POST /v1/completions, GET /v1/models, GET /v1/models/ID, GET /healthz"
_KNOWN = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz")


def check_host(request: GatewayRequest, allowed: Collection[str]) -> None:
    """On loopback take only names of this machine: any web page can make a browser send requests here under its own
    name (DNS rebinding). A request without a name, which HTTP/1.0 allows, comes from no browser."""
    if not request.bind.get("loopback"):
        return
    host = request.headers.get("Host", "")
    name = _without_port(host).lower()
    if name and name != "localhost" and name not in map(str.lower, allowed) and not _is_loopback(name):
        raise ApiError(
            403,
            "host_not_allowed",
            f"Host {host[:100]!r} is not a name of this machine: use localhost or 127.0.0.1, "
            "or add the name to allowed_hosts of [gateway]",
            kind="permission_error",
        )


def _without_port(host: str) -> str:
    if host.startswith("["):
        address, closed, _ = host[1:].partition("]")
        return address if closed else host
    return host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def check_content_type(request: GatewayRequest) -> None:
    """Take JSON only, and uncompressed. A browser may send any other type here for a foreign page without asking."""
    if request.mimetype != "application/json" and not request.mimetype.endswith("+json"):
        seen = f"not {request.mimetype[:100]!r}" if request.mimetype else "and none was sent"
        raise ApiError(
            415, "unsupported_media_type", f"the body must be JSON: send Content-Type: application/json, {seen}"
        )
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ApiError(415, "unsupported_media_type", f"Content-Encoding {encoding[:100]!r}: send the body as it is")


def http_error(error: HTTPException, request: GatewayRequest) -> ApiError:
    """Return the error for what the HTTP layer refused."""
    if isinstance(error, NotFound):
        return ApiError(404, "unknown_url", f"no route {request.method} {request.path[:200]}: {_hint(request.path)}")
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(set(error.valid_methods or ()) - {"HEAD"}))
        return ApiError(
            405,
            "method_not_allowed",
            f"{request.path[:200]} takes {allowed}, not {request.method}",
            headers={"allow": allowed},
        )
    return bad_request(f"the request is not valid HTTP: {error.description or error.name}")


def _hint(path: str) -> str:
    """Say what a wrong path was probably meant to be."""
    plain = "/" + "/".join(piece for piece in path.split("/") if piece)
    while plain.startswith("/v1/v1/"):
        plain = plain.removeprefix("/v1")
    if plain in _KNOWN and plain != path:
        why = "the base URL has /v1 twice" if "/v1/v1" in path else "there is a slash too many"
        return f"did you mean {plain}? ({why})"
    if plain.removeprefix("/v1") in ("/health", "/healthz"):
        return "did you mean /healthz?"
    if f"/v1{plain}" in _KNOWN:
        return f"did you mean /v1{plain}? (the base URL must end in /v1)"
    if plain.endswith("/responses"):
        return (
            f"the Responses API is not served; use {CHAT_ROUTE} "
            "(openai: client.chat.completions.create; AI SDK: the provider's .chat(model))"
        )
    return f"the routes are {_ROUTES}"
