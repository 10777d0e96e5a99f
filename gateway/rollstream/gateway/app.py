"""The routes, over a writer of steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rollstream.gateway import problems
from rollstream.gateway.examples import COMPLETE, STEPS
from rollstream.gateway.intake import Intake, StepsWriter, Turn
from rollstream.gateway.models import (
    Accepted,
    Body,
    CompleteBody,
    Health,
    Problem,
    StepBody,
    StepsBody,
)
from rollstream.gateway.problems import MEDIA_TYPE, Refused, explained, refused
from rollstream.gateway.tokens import Tokens
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.errors import RollstreamError

REACH_TIMEOUT_S = 2.0  # How long a probe waits for the broker.
_log = logging.getLogger("rollstream.gateway")
BodyT = TypeVar("BodyT", bound=Body)
Reach = Callable[[float], object]


class _Gateway(NamedTuple):
    """What requests share."""

    environments: frozenset[str]
    tokens: Tokens
    intake: Intake
    probe: _Probe


class _Probe:
    """Asks whether the broker answers, once for all that ask at one time."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._asking: asyncio.Task[object] | None = None

    async def ask(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(asyncio.to_thread(self._reach, REACH_TIMEOUT_S))
        await asyncio.shield(self._asking)


def create_app(
    config: RollstreamConfig, *, writer: StepsWriter, reach: Reach, clock: Clock | None = None
) -> FastAPI:
    """The application; it drains and closes the writer when its server shuts down.

    A call that was answered 200 is in the log; one that was answered 202 is on its way; of one that
    was refused, nothing was taken but where the answer says that it may be. Repeating any call is
    harmless.

    Args:
        writer: of the event loop in which the application will run.
        reach: returns once the broker answers, or raises within so many seconds.
        clock: for tests.
    """
    intake = Intake(writer, config.gateway, clock)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await intake.drain()

    app = FastAPI(
        title="Rollstream gateway",
        description="Takes steps of trajectories from agent gateways, in any language.",
        version="1",
        docs_url="/docs",
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={
            RollstreamError: _answer_error,
            RequestValidationError: _answer_invalid,
            HTTPException: _answer_http,
            Exception: _answer_defect,
        },
    )
    tokens = Tokens(config.gateway.tokens)
    app.state.gateway = _Gateway(frozenset(config.environments), tokens, intake, _Probe(reach))
    app.include_router(_probes)
    app.include_router(_steps)
    return app


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "description": "; ".join(one.title for one in problems.KINDS if one.status == status),
            "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
        }
        for status in statuses
    }


async def _authorised(
    request: Request,
    environment: str,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))],
) -> str:
    """The environment of the path, where the caller may write to it; nothing was read of the body.

    Raises:
        Refused: there is no such environment, or the token is missing, unknown or another's.
    """
    gateway: _Gateway = request.app.state.gateway
    if gateway.tokens.required:
        allowed = gateway.tokens.environments_of(given.credentials) if given else frozenset()
        if not allowed:
            raise refused(
                problems.NO_TOKEN,
                "the token is missing or not known; send Authorization: Bearer TOKEN with one of "
                "gateway.tokens",
            )
        if environment not in allowed:
            raise refused(
                problems.FORBIDDEN,
                f"the token is not one of environment {environment!r}; use one of "
                f"gateway.tokens.{environment}",
            )
    if environment not in gateway.environments:
        raise refused(
            problems.UNKNOWN,
            f"environment {environment!r} is not configured; correct the path, or add a section to "
            "the gateway's configuration",
        )
    return environment


_Environment = Annotated[str, Depends(_authorised)]
_Durable = Annotated[
    bool, Query(description="Answer 200, and only once the broker has it; else 202 at once.")
]
_probes = APIRouter()
_steps = APIRouter(
    prefix="/v1/environments/{environment}",
    responses=_problems(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
)


def _taking(model: type[Body], schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """The body of a route, which FastAPI does not parse itself: it would do so in Python."""
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _steps_schema() -> dict[str, Any]:
    """Whole, without definitions to refer to."""
    schema = StepsBody.model_json_schema()
    del schema["$defs"]
    schema["properties"]["steps"]["items"] = StepBody.model_json_schema()
    return schema


@_steps.post(
    "/steps",
    status_code=202,
    response_model=Accepted,
    responses={200: {"model": Accepted, "description": "The broker has all of them"}},
    openapi_extra=_taking(StepsBody, _steps_schema(), STEPS),
)
async def submit_steps(
    request: Request, environment: _Environment, durable: _Durable = False
) -> Response:
    """Publishes steps; repeated ones count once."""
    intake = _intake(request)
    async with intake.request() as turn:
        body = await _body(turn, request, StepsBody)
        steps = [one.step() for one in body.steps]
        del body  # Its lists of numbers take many times the arrays of the steps.
        await intake.submit(turn, steps, environment, durable)
        return _accepted(intake, environment, len(steps), durable)


@_steps.post(
    "/trajectories/{trajectory_uid:path}/complete",
    status_code=202,
    response_model=Accepted,
    responses={200: {"model": Accepted, "description": "The broker has it"}},
    openapi_extra=_taking(CompleteBody, CompleteBody.model_json_schema(), COMPLETE),
)
async def complete_trajectory(
    request: Request, environment: _Environment, trajectory_uid: str, durable: _Durable = False
) -> Response:
    """The trajectory has ended with the newest step that was submitted. Not needed where that step
    has `is_last`."""
    intake = _intake(request)
    async with intake.request() as turn:
        body = await _body(turn, request, CompleteBody)
        await intake.complete(turn, trajectory_uid, body, environment, durable)
        return _accepted(intake, environment, 1, durable)


@_probes.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Whether the process answers at all."""
    return _json(Health(status="ok"), 200)


@_probes.get("/readyz", response_model=Health, responses=_problems(503))
async def readyz(request: Request) -> Response:
    """Whether the broker answers; its outage makes a gateway not ready, and no reason to restart
    it."""
    await request.app.state.gateway.probe.ask()
    return _json(Health(status="ok"), 200)


def _intake(request: Request) -> Intake:
    intake: Intake = request.app.state.gateway.intake
    return intake


async def _body(turn: Turn, request: Request, model: type[BodyT]) -> BodyT:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity")
    if kind != "application/json" or encoding != "identity":
        raise refused(
            problems.UNSUPPORTED,
            f"the body is {problems.shown(kind)}, encoded as {problems.shown(encoding)}; send "
            "Content-Type: application/json, not compressed",
        )
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    try:
        raw = await turn.body(request.stream(), size)
    except ClientDisconnect:
        raise refused(problems.CUT_OFF, "the connection ended first; send it again") from None
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise problems.invalid(error.errors(include_url=False)[0]) from None


def _accepted(intake: Intake, environment: str, count: int, durable: bool) -> Response:
    undelivered = intake.undelivered[environment]
    answer = Accepted(accepted=count, durable=durable, undelivered=undelivered)
    return _json(answer, 200 if durable else 202)


def _json(model: Accepted | Health, status: int) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def _answer(found: Refused) -> Response:
    content = found.problem.model_dump_json(exclude_none=True)
    return Response(content, found.problem.status, found.headers, MEDIA_TYPE)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RollstreamError)
    return _answer(explained(error))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(problems.invalid(error.errors()[0]))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = Problem(
        type="about:blank",
        title=str(error.detail),
        status=error.status_code,
        detail=f"{request.method} {request.url.path}: {error.detail}; /docs lists what there is",
    )
    return _answer(Refused(problem, error.headers))


async def _answer_defect(request: Request, error: Exception) -> Response:
    """The server logs the traceback."""
    problem = Problem(
        type="about:blank",
        title="Internal Server Error",
        status=500,
        detail="a defect of the gateway, which its log explains; a retry of the call is harmless",
    )
    return _answer(Refused(problem))
