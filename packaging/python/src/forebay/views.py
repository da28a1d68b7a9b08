"""What the REST API answers, as its description (docs/openapi.json) has it. Fields that a later version adds are ignored."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from typing import Any, Dict, List, Optional, Tuple, Type, TypeVar

View = TypeVar("View")


def of(kind: Type[View], value: Dict[str, Any]) -> View:
    """Makes a view of an object of an answer."""
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(typing.cast(Any, kind))
    return kind(**{field.name: _value(hints[field.name], value.get(field.name)) for field in fields})


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    inner: Tuple[Any, ...] = getattr(hint, "__args__", None) or ()
    if type(None) in inner:
        return _value(next(one for one in inner if one is not type(None)), value)
    if hint is datetime.datetime:
        return _time(value)
    if dataclasses.is_dataclass(hint):
        return of(typing.cast(Any, hint), value)
    if getattr(hint, "__origin__", None) in (list, List) and dataclasses.is_dataclass(inner[0]):
        return [of(typing.cast(Any, inner[0]), one) for one in value]
    return value


def _time(text: str) -> datetime.datetime:
    """A time of an answer: RFC 3339, in UTC, with or without parts of a second."""
    whole, _, parts = text.rstrip("Z").partition(".")
    moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    return moment.replace(microsecond=int((parts + "000000")[:6])) if parts else moment


@dataclasses.dataclass(frozen=True)
class Used:
    """What a job used. What its host does not measure is None."""

    real_seconds: float
    cpu_seconds: float
    io_wait_seconds: Optional[float]
    peak_memory_bytes: Optional[int]
    read_bytes: Optional[int]
    written_bytes: Optional[int]
    work_bytes: Optional[int]


@dataclasses.dataclass(frozen=True)
class JobInput:
    """A file or directory that a job reads, and the host that had its bytes when the job was submitted."""

    path: str
    home: Optional[str]


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """Further options of a job; only where one job is requested."""

    memory_bytes: Optional[int]
    hosts: str
    depends: Optional[str]
    priority: int
    project: str
    time_limit_seconds: Optional[float]
    requeue_exits: str
    checkpoint: bool
    directory: str
    array: Optional[str]
    reservation: Optional[str]
    resources: str
    exclusive: bool
    begin: Optional[datetime.datetime]
    deadline: Optional[datetime.datetime]
    warning: Optional[str]
    features: Optional[str]
    inputs: List[JobInput]


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, an element of an array, or waiting elements of one array together."""

    id: str
    job: int
    name: str
    user: str
    queue: str
    state: str
    tasks: int
    host: Optional[str]
    attempts: int
    slots: int
    exit: Optional[str]
    exit_code: Optional[int]
    submitted: datetime.datetime
    started: Optional[datetime.datetime]
    ended: Optional[datetime.datetime]
    command: List[str]
    output: str
    error: Optional[str]
    group: Optional[str]
    used: Optional[Used]
    options: Optional[JobOptions]


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One finished start of a task."""

    id: str
    attempt: int
    host: str
    state: str
    outcome: Optional[str]
    launched: datetime.datetime
    started: Optional[datetime.datetime]
    ended: datetime.datetime
    used: Optional[Used]


@dataclasses.dataclass(frozen=True)
class HostReason:
    """What a host says of a job: nothing if it could take it."""

    host: str
    obstacle: Optional[str]


@dataclasses.dataclass(frozen=True)
class Reasons:
    """Why a job waits, or why it ran where it ran."""

    reasons: List[str]
    hosts: List[HostReason]


@dataclasses.dataclass(frozen=True)
class Output:
    """A part of a file that a job writes."""

    path: str
    length: int
    offset: int
    text: str
    ended: bool


@dataclasses.dataclass(frozen=True)
class Host:
    """A host."""

    name: str
    state: str
    open: bool
    slots: int
    used_slots: int
    memory_bytes: Optional[int]
    used_memory_bytes: int
    load: Optional[float]
    processors_used: Optional[float]
    jobs: List[str]
    features: List[str]


@dataclasses.dataclass(frozen=True)
class JobGroup:
    """A job group of yours. `used` counts what is on hosts there and in groups below it, which is what `limit` is for."""

    group: str
    limit: Optional[int]
    used: int
    pending: int
    running: int
    suspended: int
    ended: int


@dataclasses.dataclass(frozen=True)
class Queue:
    """A queue."""

    name: str
    priority: Optional[int]
    open: bool
    active: bool
    windows_open: bool
    used_slots: int
    slots_max: Optional[int]
    user_slots_max: Optional[int]
    pending_tasks: int
    held_tasks: int
    active_tasks: int
    is_default: bool


@dataclasses.dataclass(frozen=True)
class Alert:
    """Something that is wrong, or was."""

    code: str
    text: str
    firing: bool
    since: datetime.datetime
    resolved: Optional[datetime.datetime]
    muted_until: Optional[datetime.datetime]


@dataclasses.dataclass(frozen=True)
class Event:
    """A change of a job or a host: its kind (`ready` first, then `job`, `host` or `lost`), and what is known of it now."""

    name: str
    data: Dict[str, Any]
