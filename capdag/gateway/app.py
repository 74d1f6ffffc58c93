"""The application: its routes, and one form for every error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from quart import Response, request
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import MapAdapter

from capdag.client import Client
from capdag.errors import CapdagError, RequestFailedError

from .arrival import BodyRoom
from .bodies import read_chat, read_completion
from .catalogue import find_model, list_models
from .connection import GatewayConnection, GatewayRequest
from .errors import ApiError, api_error
from .guards import check_content_type, check_host, http_error
from .inference import Endpoint, Inference
from .readiness import Readiness, starting
from .settings import DEFAULT_SETTINGS, GatewaySettings
from .shapes import CHAT, COMPLETION
from .sse import dump

log = logging.getLogger("capdag.gateway")


class Admin(Protocol):
    """What the admin routes can ask of the process they run in."""

    def ps(self) -> Mapping[str, Any]:
        """Return what runs, as JSON values."""

    def reset(self, name: str) -> None:
        """Let a cartridge record that was given up start again. Raises CapdagError for a name nobody has."""

    def reload(self) -> Mapping[str, Any]:
        """Read again which cartridges there are, and return what has changed. Raises CapdagError for what is wrong."""


def create_app(
    client: Client,
    settings: GatewaySettings = DEFAULT_SETTINGS,
    *,
    admin: Admin | None = None,
    readiness: Callable[[], Readiness] = lambda: Readiness.READY,
) -> Gateway:
    """Return the application that serves what `client` can reach.

    With `admin` it also answers `/_capdag/…`, on unix sockets only. While `readiness()` is STARTING every other
    request is told to come again (503, Retry-After); while it is LEARNING, one for a model that nobody has.
    """
    return Gateway(client, settings, admin, readiness)


class Gateway(QuartTrio):
    """The ASGI application. `serve_http` runs it."""

    asgi_http_class = GatewayConnection
    request_class = GatewayRequest

    def __init__(
        self, client: Client, settings: GatewaySettings, admin: Admin | None, readiness: Callable[[], Readiness]
    ) -> None:
        super().__init__("capdag.gateway", static_folder=None)
        self._client = client
        self._settings = settings
        self._admin = admin
        self._readiness = readiness
        self._inference = Inference(client, settings)
        self.body_room = BodyRoom(settings.body_limit, settings.bodies_limit)
        self.url_map.merge_slashes = False
        self.config.update(
            BODY_ROOM=self.body_room,
            RESPONSE_TIMEOUT=None,
            PROVIDE_AUTOMATIC_OPTIONS=False,
        )
        self.before_request(self._guard)
        self.register_error_handler(Exception, self._show_error)
        self._add_routes()

    def _add_routes(self) -> None:
        routes: list[tuple[str, str, Callable[..., Awaitable[Response]]]] = [
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._completion),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/<path:model_id>", self._model),
            ("GET", "/healthz", self._health),
            ("GET", "/_capdag/ps", self._ps),
            ("POST", "/_capdag/reset/<path:name>", self._reset),
            ("POST", "/_capdag/reload", self._reload),
        ]
        for method, path, view in routes:
            self.add_url_rule(path, view.__name__, view, methods=[method])

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Route by the path alone: what is wrong with a Host header is for the guard to tell."""
        if request is None:
            return None
        return self.url_map.bind("localhost", default_method=request.method, path_info=request.path)

    def interrupt(self) -> None:
        """End every running request with an error that its client is told."""
        self._inference.interrupt()

    async def _guard(self) -> None:
        asked = _current()
        check_host(asked, self._settings.allowed_hosts)
        if self._readiness() is Readiness.STARTING and not asked.path.startswith("/_capdag/"):
            raise starting("not every cartridge has said what it serves")

    async def _chat(self) -> Response:
        return await self._infer(_CHAT)

    async def _completion(self) -> Response:
        return await self._infer(_COMPLETION)

    async def _infer(self, endpoint: Endpoint) -> Response:
        asked = _current()
        check_content_type(asked)
        body = await asked.arrival.whole(self._settings.body_deadline)
        whole = await self._inference.answer(endpoint, body, asked.reply, _caller(asked))
        # A streamed answer has gone out already: this response is then not looked at.
        return Response(whole or b"", content_type="application/json")

    async def _models(self) -> Response:
        listed = [model.as_json() for model in list_models(self._client.capabilities())]
        return _json({"object": "list", "data": listed})

    async def _model(self, model_id: str) -> Response:
        return _json(find_model(self._client.capabilities(), model_id).as_json())

    async def _health(self) -> Response:
        """Ready while some host offers a model, by what the switch knows at this moment."""
        models = list_models(self._client.capabilities())
        if not models:
            raise ApiError(503, "not_ready", "no host offers a model: start one, or see its log", retry=True)
        return _json({"status": "ready", "models": len(models)})

    async def _ps(self) -> Response:
        return _json(self._local_admin().ps())

    async def _reset(self, name: str) -> Response:
        admin = self._local_admin()
        try:
            admin.reset(name)
        except CapdagError as error:
            raise ApiError(404, "unknown_record", str(error)) from None
        return _json({"reset": name})

    async def _reload(self) -> Response:
        admin = self._local_admin()
        try:
            return _json(admin.reload())
        except CapdagError as error:
            raise ApiError(409, "not_reloaded", str(error)) from None

    def _local_admin(self) -> Admin:
        if self._admin is None or not _current().bind.get("unix"):
            raise NotFound
        return self._admin

    async def _show_error(self, error: Exception) -> Response:
        """Tell any failure in the one form. What nobody expected is a fault of ours: it goes to the log with its
        trace, and the client gets the id to find it by."""
        asked = _current()
        if isinstance(error, HTTPException):
            error = http_error(error, asked)
        elif isinstance(error, RequestFailedError):
            error = api_error(error, started=True)
        if not isinstance(error, ApiError):
            log.error("request %s failed", asked.reply.request_id, exc_info=error)
            error = ApiError(
                500, "internal_error", f"a fault of the gateway: report request id {asked.reply.request_id}"
            )
        elif error.http_code == "model_not_found" and self._readiness() is Readiness.LEARNING:
            error = starting(f"{error.message}, and not every cartridge has said what it serves")
        body, headers = error.render()
        return Response(body, error.status, headers)


_CHAT = Endpoint(read_chat, CHAT)
_COMPLETION = Endpoint(read_completion, COMPLETION)


def _current() -> GatewayRequest:
    found = request._get_current_object()  # type: ignore[attr-defined]
    assert isinstance(found, GatewayRequest)
    return found


def _caller(asked: GatewayRequest) -> str:
    """Return whose turn in line a request takes: that of the key it came with, else that of its address."""
    return asked.headers.get("Authorization") or asked.remote_addr or ""


def _json(value: Any) -> Response:
    return Response(dump(value), content_type="application/json")
