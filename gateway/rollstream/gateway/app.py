"""The routes, over a writer of steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rollstream.gateway import bodies, problems
from rollstream.gateway.answers import answer, problem_answer
from rollstream.gateway.bodies import BodyT
from rollstream.gateway.connections import Connection, Connections
from rollstream.gateway.intake import Call, Intake, Write
from rollstream.gateway.models import (
    Accepted,
    Answer,
    Body,
    CallQuery,
    CompleteBody,
    FailBody,
    Health,
    NewestPolicy,
    NoQuery,
    PolicyQuery,
    Problem,
    ScoreBody,
    StepsBody,
    held_bytes,
    schemas,
)
from rollstream.gateway.problems import MEDIA_TYPE, Kind, Refused, explained, shown
from rollstream.gateway.scores import LateScores
from rollstream.gateway.tokens import Tokens
from rollstream.producers import AsyncStepProducer, InvalidRollout, Step
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.rules import UID_PATTERN

_SCHEMAS = "#/components/schemas/"
_BEARER = "HTTPBearer"
_SECURED: dict[str, Any] = {"security": [{_BEARER: []}]}
REACH_TIMEOUT_S = 2.0  # How long a probe waits for the broker.
_log = logging.getLogger("rollstream.gateway")
Reach = Callable[[float], object]


@dataclass
class _Gateway:
    """What requests share."""

    environments: frozenset[str]
    tokens: Tokens
    intake: Intake
    scores: LateScores
    _reach: Reach
    _asking: asyncio.Task[object] | None = None

    async def reach(self) -> None:
        """Asks whether the broker answers, once for all that ask at one time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(asyncio.to_thread(self._reach, REACH_TIMEOUT_S))
        await asyncio.shield(self._asking)


def create_app(
    config: RollstreamConfig,
    *,
    writer: AsyncStepProducer,
    reach: Reach,
    scores: LateScores,
) -> FastAPI:
    """Returns the application. It drains and closes the writer when its server shuts down.

    Steps that were answered with 200 are in the log. Steps that were answered with 202 are on their
    way. A refused call took nothing, unless its answer says that it may have. You may repeat any
    call.

    Args:
        config: the configuration.
        writer: a writer of the event loop in which the application runs.
        reach: returns when the broker answers, or raises within so many seconds.
        scores: a writer of scores.
    """
    intake = Intake(writer, config.gateway, environments=len(config.environments))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"connections": Connections(intake, config.gateway)}
        await intake.drain()

    app = FastAPIOffline(  # Its page loads nothing from elsewhere.
        title="Rollstream gateway",
        description="Takes steps of agents' trajectories from writers in any language. You may "
        "repeat any call: a step counts once.",
        version="1",
        docs_url="/docs",
        redoc_url=None,
        generate_unique_id_function=attrgetter("name"),  # Generated clients name calls by it.
        redirect_slashes=False,  # A redirect would lead to whichever host the caller names.
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(
            (RollstreamError, RequestValidationError, HTTPException, Exception), _answer_error
        ),
    )
    names, tokens = frozenset(config.environments), Tokens(config.gateway.tokens)
    app.state.gateway = _Gateway(names, tokens, intake, scores, reach)
    app.include_router(_probes)
    app.include_router(_steps)
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the schemas of what FastAPI neither parses nor writes."""
    if app.openapi_schema is None:
        components = FastAPI.openapi(app).setdefault("components", {})
        components["securitySchemes"] = {_BEARER: {"type": "http", "scheme": "bearer"}}
        components.setdefault("schemas", {}).update(schemas(f"{_SCHEMAS}{{name}}"))
    return app.openapi_schema or {}


def _holds(model: type[Body | Answer], media_type: str = "application/json") -> dict[str, Any]:
    """What a body holds, for the OpenAPI document."""
    return {"content": {media_type: {"schema": {"$ref": f"{_SCHEMAS}{model.__name__}"}}}}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "description": "; ".join(one.title for one in Kind if one.status == status),
            **_holds(Problem, MEDIA_TYPE),
        }
        for status in statuses
    }


async def _admitted(request: Request, environment: str) -> Intake:
    """The bounds of a call whose caller may write to the environment of its path, and which gives
    each query parameter once; nothing was read of the body.

    Raises:
        Refused: there is no such environment, or the token is missing, unknown or another's.
    """
    gateway: _Gateway = request.app.state.gateway
    if gateway.tokens.required:
        given = request.headers.getlist("Authorization")
        if len(given) > 1:
            finding = f"there are {len(given)} headers Authorization"
            raise Refused(Kind.NO_TOKEN, finding, "send one of them", "Authorization")
        scheme, _, token = given[0].partition(" ") if given else ("", "", "")
        allowed = gateway.tokens.environments_of(token) if scheme.lower() == "bearer" else ()
        if not allowed:
            raise Refused(
                Kind.NO_TOKEN,
                "the token is missing or not known",
                "send Authorization: Bearer TOKEN with one of gateway.tokens",
                "Authorization",
            )
        if environment not in allowed:
            raise Refused(
                Kind.FORBIDDEN,
                f"the token is not one of environment {shown(environment)}",
                f"use one of gateway.tokens.{problems.shortened(environment)}, or correct the "
                "environment's name",
                "Authorization",
            )
    if environment not in gateway.environments:
        raise Refused(
            Kind.UNKNOWN,
            f"environment {shown(environment)} is not configured",
            "correct the path, or add a section to the gateway's configuration",
            "environment",
            shown(environment),
        )
    connection: Connection | None = getattr(request.state, "connection", None)
    if connection is not None:
        connection.bounded_by.claim(connection, environment)
    for name in request.query_params:
        if (count := len(request.query_params.getlist(name))) > 1:
            finding, remedy = f"the query parameter {name!r} has {count} values", "give it once"
            raise Refused(Kind.QUERY, finding, remedy, name, f"{count} values")
    return gateway.intake


_Admitted = Annotated[Intake, Depends(_admitted)]
_Query = Annotated[CallQuery, Query()]
_NoQuery = Annotated[NoQuery, Query()]
_probes = APIRouter()
_steps = APIRouter(
    prefix="/v1/environments/{environment}",
    default_response_class=Response,
    responses=_problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 504),
)
_Route = Callable[..., Awaitable[Response]]


def _post(
    path: str, model: type[Body], done: str, *, accepts: bool = True
) -> Callable[[_Route], _Route]:
    """A route that takes this body, which FastAPI does not parse itself: it would do so in Python.

    Args:
        accepts: whether it answers 202, too.
    """
    taken = {202: "It was taken, and is on its way"} if accepts else {}
    return _steps.post(
        path,
        status_code=min({200, *taken}),
        responses={
            status: {"description": text, **_holds(Accepted)}
            for status, text in {**taken, 200: done}.items()
        },
        openapi_extra={**_SECURED, "requestBody": {"required": True, **_holds(model)}},
    )


@_post("/steps", StepsBody, "All steps are in the log")
async def submit_steps(
    request: Request, environment: str, intake: _Admitted, query: _Query
) -> Response:
    """Submits steps: all of them, or none. A step that is submitted again counts once."""
    async with intake.request(environment) as call:
        # Of its lists of numbers nothing is left: they take many times the arrays of the steps.
        steps = _steps_of(await _body(call, request, StepsBody))
        call.recount(sum(map(held_bytes, steps)))
        write = partial(intake.writer.submit_steps, steps)
        await intake.deliver(call, write, durable=query.durable, count=len(steps))
        return _accepted(intake, environment, len(steps), query.durable)


@dataclass
class _OfTrajectory:
    """A call about one trajectory."""

    request: Request
    environment: str
    # The writer checks it, as it does a step's.
    trajectory_uid: Annotated[str, Path(json_schema_extra={"pattern": UID_PATTERN})]
    intake: _Admitted

    async def written(self, model: type[Body], write: Write, *, durable: bool = True) -> Response:
        """The answer once what the body says of the trajectory was written."""
        async with self.intake.request(self.environment) as call:
            given = msgspec.structs.asdict(await _body(call, self.request, model))
            write = partial(write, self.trajectory_uid, **given)
            await self.intake.deliver(call, write, durable=durable)
            return _accepted(self.intake, self.environment, 1, durable)


_Trajectory = Annotated[_OfTrajectory, Depends()]
_PATH = "/trajectories/{trajectory_uid:path}"


@_post(f"{_PATH}/complete", CompleteBody, "The end is in the log")
async def complete_trajectory(trajectory: _Trajectory, query: _Query) -> Response:
    """Ends a trajectory whose last step had no `is_last`. Send it when a step of the trajectory is
    in the log: an earlier end counts for nothing."""
    write = trajectory.intake.writer.complete_trajectory
    return await trajectory.written(CompleteBody, write, durable=query.durable)


@_post(f"{_PATH}/fail", FailBody, "The failure is in the log")
async def fail_trajectory(trajectory: _Trajectory, query: _Query) -> Response:
    """Ends a trajectory that will not be finished. Its steps are not trained on, and its prompt
    does not wait for it."""
    write = trajectory.intake.writer.fail_trajectory
    return await trajectory.written(FailBody, write, durable=query.durable)


@_post(f"{_PATH}/score", ScoreBody, "The score is in the log", accepts=False)
async def score_trajectory(trajectory: _Trajectory, query: _NoQuery) -> Response:
    """Scores a trajectory late, also once its group was sealed. Answers when the score is in the
    log. An equal score that is sent again counts once."""
    gateway: _Gateway = trajectory.request.app.state.gateway
    return await trajectory.written(ScoreBody, gateway.scores.publish)


@_steps.get("/policy", responses={200: _holds(NewestPolicy)}, openapi_extra=_SECURED)
async def newest_policy(
    environment: str, intake: _Admitted, query: Annotated[PolicyQuery, Query()]
) -> Response:
    """Returns the newest policy that the environment's trainer published. Sample with it, and give
    its version with each step. Answers 404 if no policy was published (`no-policy`), or if the run
    of its trainer is over (`run-over`)."""
    async with intake.request(environment) as call:
        found = await intake.policy(call, query.lineage)
        return answer(msgspec.convert(found, NewestPolicy, from_attributes=True))


@_probes.head("/healthz", include_in_schema=False)
@_probes.get("/healthz", responses={200: _holds(Health)})
async def healthz() -> Response:
    """Answers 200 while the process lives."""
    return answer(Health(status="ok"))


@_probes.head("/readyz", include_in_schema=False)
@_probes.get("/readyz", responses={200: _holds(Health), **_problems(503)})
async def readyz(request: Request) -> Response:
    """Answers 200 while calls are taken, for load balancers: the broker answers, and the gateway is
    not ending. An outage of the broker is no reason to restart the gateway."""
    gateway: _Gateway = request.app.state.gateway
    gateway.intake.check_ready()
    await gateway.reach()
    return answer(Health(status="ok"))


_PLAIN = "send Content-Type: application/json, not compressed"
_HEADERS = (  # Of a body: what it is where it is not given, and what it has to be.
    ("Content-Type", "", "application/json", _PLAIN),
    ("Content-Encoding", "identity", "identity", _PLAIN),
    ("Transfer-Encoding", "chunked", "chunked", _PLAIN),
    # uvicorn passes over the body. Some clients, as Java's, ask for HTTP/2 unless told otherwise.
    ("Upgrade", "", "", "speak HTTP/1.1 alone, and ask for no other protocol"),
)


async def _body(call: Call, request: Request, model: type[BodyT]) -> BodyT:
    for header, usual, wanted, remedy in _HEADERS:
        said = ", ".join(request.headers.getlist(header)) or usual
        if said.partition(";")[0].strip().lower() != wanted:
            finding = f"{header} is {shown(said)}"
            raise Refused(Kind.UNSUPPORTED, finding, remedy, header, shown(said))
    size = int(request.headers.get("Content-Length", 0))  # llhttp passes on no other text.
    try:
        raw = await call.body(request.stream(), size)
    except ClientDisconnect:
        raise Refused(Kind.CUT_OFF, "the connection ended first", "send it again") from None
    return bodies.read(raw, model)


def _steps_of(body: StepsBody) -> list[Step]:
    steps: list[Step] = []
    try:
        for one in body.steps:
            steps.append(one.step())
    except InvalidRollout as wrong:
        wrong.index = len(steps)
        raise
    return steps


def _accepted(intake: Intake, environment: str, count: int, durable: bool) -> Response:
    undelivered = intake.undelivered[environment]
    accepted = Accepted(accepted=count, durable=durable, undelivered=undelivered)
    return answer(accepted, 200 if durable else 202)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RollstreamError):
        found = explained(error)
    elif isinstance(error, RequestValidationError):
        found = problems.wrong_query(error.errors()[0])
    elif isinstance(error, HTTPException):
        allowed = (error.headers or {}).get("Allow")
        found = problems.not_routed(error.status_code, request.method, request.url.path, allowed)
    else:  # The server logs the traceback.
        remedy = "its log explains it; a retry of the call is harmless"
        found = Refused(Kind.DEFECT, "a defect of the gateway", remedy)
    request.app.state.gateway.intake.refused[found.kind] += 1
    return problem_answer(found)
