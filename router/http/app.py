"""The paths of the HTTP port, and what answers them."""

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from router.http import info, tokens
from router.http.access import HttpAccess
from router.http.bodies import Bodies
from router.http.call import REQUEST_ID, is_id
from router.http.chat import endpoint as chat
from router.http.completions import endpoint as completions
from router.http.embeddings import endpoint as vectors
from router.http.endpoint import (
    NO_DEFAULTS,
    OPENAI,
    ApiShape,
    Around,
    BodyDefaults,
    Endpoint,
    Handle,
)
from router.http.errors import HttpError
from router.http.generate import END, generate
from router.http.home import home
from router.http.known_fields import UnknownFields
from router.http.messages import endpoint as messages
from router.http.messages.errors import ANTHROPIC
from router.http.responses import endpoint as responses
from router.http.responses.held import HeldResponses
from router.requests.inference import Inference

RESPONSES = ApiShape(
    error_event="error",
    own_name=lambda name: "max_output_tokens" if name == "max_tokens" else name,
)
MESSAGES = "/v1/messages"
OF_TEXTS = ApiShape(in_stream=lambda body, _: body + END)


def make_app(
    inference: Inference,
    access: HttpAccess,
    bodies: Bodies,
    *,
    why_not_serving: Callable[[], str],
    keep_alive_s: float,
    hold_s: float,
    cors_origins: Sequence[str] = (),
    root_path: str = "",
    body_defaults: BodyDefaults = NO_DEFAULTS,
    metrics: Callable[[], bytes] = bytes,
    tokenizer: Handle | None = None,
    unknown_fields: UnknownFields | None = None,
    num_answers: Counter[tuple[str, int]] | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        inference: answers requests.
        access: knows callers.
        bodies: reads what requests bring.
        why_not_serving: returns a line while no cell is there; "" while all is well.
        keep_alive_s: how long a stream of events may be silent.
        hold_s: how long a response whose stream broke can be asked for.
        cors_origins: whose pages browsers let read answers; "*" for all.
        root_path: under which paths are taken, too.
        body_defaults: what is added to the bodies of OpenAI's chats and completions.
        metrics: returns those of the router, as Prometheus reads them.
        tokenizer: answers what the tokenizer is; None where that is not known.
        unknown_fields: to count in those that no API knows.
        num_answers: to count in, by route and status.
    """
    counts = Counter() if num_answers is None else num_answers
    around = Around(
        *(inference, access, bodies, keep_alive_s, counts, body_defaults),
        UnknownFields() if unknown_fields is None else unknown_fields,
    )

    def get(path: str, handle: Handle, is_open: bool = False, shape: ApiShape = OPENAI) -> Route:
        endpoint = Endpoint(around, path, handle, has_body=False, is_open=is_open, shape=shape)
        return Route(path, endpoint, methods=["GET"])

    def post(
        path: str,
        handle: Handle,
        shape: ApiShape = OPENAI,
        has_body: bool = True,
        is_open: bool = False,
    ) -> Route:
        endpoint = Endpoint(around, path, handle, has_body=has_body, is_open=is_open, shape=shape)
        return Route(path, endpoint, methods=["POST"])

    models, held = info.Models(inference), HeldResponses(hold_s)
    create, retrieve = responses.create(inference, held), responses.retrieve(inference, held)
    one = "/v1/responses/{response_id}"
    routes = [
        get("/health", info.health(why_not_serving), is_open=True),
        get("/ping", info.health(why_not_serving), is_open=True),
        post("/ping", info.health(why_not_serving), has_body=False, is_open=True),
        get("/version", info.version),
        get("/load", info.load(inference)),
        get("/metrics", info.metrics(metrics)),
        get("/v1/models", models.list),
        # A name may have slashes, as those of a hub do.
        get("/v1/models/{model:path}", models.retrieve),
        post("/v1/completions", completions.completions(inference)),
        post("/v1/chat/completions", chat.chat_completions(inference)),
        post("/v1/responses", create, RESPONSES),
        post("/v1/responses/input_tokens", responses.input_tokens(inference), RESPONSES),
        get(one, retrieve, shape=RESPONSES),
        post(f"{one}/cancel", responses.cancel(inference, held), has_body=False),
        post(MESSAGES, messages.create(inference), ANTHROPIC),
        post(f"{MESSAGES}/count_tokens", messages.count_tokens(inference), ANTHROPIC),
        post("/v1/embeddings", vectors.embeddings(inference)),
        *(post(f"{version}/score", vectors.score(inference)) for version in ("", "/v1")),
        *(post(f"{version}/rerank", vectors.rerank(inference)) for version in ("", "/v1", "/v2")),
        post("/tokenize", tokens.tokenize(inference)),
        post("/detokenize", tokens.detokenize(inference)),
        *([get("/tokenizer_info", tokenizer)] if tokenizer is not None else []),
        post("/generate", generate(inference), OF_TEXTS),
    ]
    paths = [f"{min(each.methods or ()):<5} {each.path}" for each in routes]
    routes.append(get("/", home(inference, paths)))

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for it"
        status = HTTPStatus(error.status_code)
        counts["other", int(status)] += 1
        path = request.scope["path"].removeprefix(root_path)
        shape = ANTHROPIC if f"{path}/".startswith(f"{MESSAGES}/") else OPENAI
        text = _why_not(status, request.method, path, routes)
        own_id = request.headers.get(REQUEST_ID, "")
        request_id = own_id if own_id and is_id(own_id) else uuid.uuid4().hex
        headers = dict.fromkeys(shape.id_headers, request_id)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_methods_of(path, routes))
        body = shape.error_body(HttpError(status, text), request_id)
        return JSONResponse(body, status, headers)

    app = Starlette(
        routes=routes,
        middleware=[_cors(cors_origins)] if cors_origins else [],
        exception_handlers={HTTPException: refuse},
    )
    # To whatever host the request names, and without a key.
    app.router.redirect_slashes = False
    return _under(root_path, app) if root_path else app


def _methods_of(path: str, routes: Sequence[Route]) -> list[str]:
    """Return the methods that a path takes."""
    taken = (route.methods or () for route in routes if route.path_regex.match(path))
    return sorted({name for methods in taken for name in methods})


def _why_not(status: HTTPStatus, method: str, path: str, routes: Sequence[Route]) -> str:
    """Return what is wrong with a request that no route takes."""
    shown = path[:128]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        # HEAD goes with GET.
        methods = " or ".join(each for each in _methods_of(path, routes) if each != "HEAD")
        return f"method: must be {methods} for {shown}, got {method}"
    if status is HTTPStatus.NOT_FOUND:
        there = ", ".join(dict.fromkeys(route.path for route in routes))
        return f"path: must be one of {there}, got {shown}"
    return status.description or status.phrase


def _under(root_path: str, app: ASGIApp) -> ASGIApp:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        # Routes leave it out of a path that begins with it.
        await app({**scope, "root_path": root_path}, receive, send)

    return run


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        # Those of OpenAI's client in a browser are many, and change: any may be sent.
        allow_headers=["*"],
        expose_headers=[*ANTHROPIC.id_headers, "retry-after", "retry-after-ms"],
    )
