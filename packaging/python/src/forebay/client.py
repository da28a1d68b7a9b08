"""The client of the REST API."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

from .views import Alert, Attempt, Event, Host, Job, JobGroup, Output, Queue, Reasons, of

Target = Union[int, str, Job]


class Problem(Exception):
    """A request that was refused. `kind` is for programs (`no_job`, `wrong_state`, ...), `detail` for people."""

    def __init__(self, kind: str, detail: str, status: int) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.status = status


class Unreachable(Exception):
    """The web server does not answer."""


class Client:
    """A grid, as the user of a token sees it.

    `url` is what `forebay web serve` prints [default: the environment variable FOREBAY_URL, otherwise http://127.0.0.1:8787], `token`
    what `forebay web token` prints [default: FOREBAY_TOKEN]. `ca` names a file with the certificate of the server, or of its authority,
    if the system does not know it. A request that is not answered within `timeout` seconds raises `Unreachable`.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        ca: Optional[str] = None,
        timeout: float = 60.0,
    ) -> None:
        self.url = (url or os.environ.get("FOREBAY_URL") or "http://127.0.0.1:8787").rstrip("/")
        token = token or os.environ.get("FOREBAY_TOKEN")
        if not token:
            raise ValueError("no token: give one, or set FOREBAY_TOKEN (forebay web token prints one)")
        self._token = token
        self._timeout = timeout
        handlers: List[urllib.request.BaseHandler] = []
        if self.url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)))
        self._opener = urllib.request.build_opener(*handlers)

    def submit(
        self,
        command: Sequence[str],
        *,
        script: Optional[str] = None,
        name: Optional[str] = None,
        queue: Optional[str] = None,
        slots: Optional[int] = None,
        memory: Optional[str] = None,
        time_limit: Optional[str] = None,
        hosts: Optional[str] = None,
        depends: Optional[str] = None,
        priority: Optional[int] = None,
        project: Optional[str] = None,
        directory: Optional[str] = None,
        environment: Optional[Dict[str, str]] = None,
        output: Optional[str] = None,
        error: Optional[str] = None,
        umask: Optional[str] = None,
        hold: bool = False,
        rerunnable: bool = False,
        checkpoint: bool = False,
        requeue_exit: Optional[str] = None,
        reservation: Optional[str] = None,
        inputs: Optional[Sequence[str]] = None,
        group: Optional[str] = None,
        resources: Optional[str] = None,
        exclusive: bool = False,
        begin: Optional[str] = None,
        deadline: Optional[str] = None,
        warning: Optional[str] = None,
        features: Optional[str] = None,
        dependency_never: Optional[str] = None,
        pre: Optional[str] = None,
        post: Optional[str] = None,
        profile: Optional[str] = None,
        io_heavy: bool = False,
        notify: Optional[Sequence[str]] = None,
        mail: Optional[Sequence[str]] = None,
        webhook: Optional[str] = None,
    ) -> int:
        """Submits a job and returns its number. Texts have the forms that `forebay submit` takes. One call makes one job, even if it
        has to be sent twice."""
        options: Dict[str, Any] = {
            "script": script,
            "name": name,
            "queue": queue,
            "slots": slots,
            "memory": memory,
            "time_limit": time_limit,
            "hosts": hosts,
            "depends": depends,
            "priority": priority,
            "project": project,
            "directory": directory,
            "environment": environment,
            "output": output,
            "error": error,
            "umask": umask,
            "hold": hold or None,
            "rerunnable": rerunnable or None,
            "checkpoint": checkpoint or None,
            "requeue_exit": requeue_exit,
            "reservation": reservation,
            "inputs": list(inputs) if inputs is not None else None,
            "group": group,
            "resources": resources,
            "exclusive": exclusive or None,
            "begin": begin,
            "deadline": deadline,
            "warning": warning,
            "features": features,
            "dependency_never": dependency_never,
            "pre": pre,
            "post": post,
            "profile": profile,
            "io_heavy": io_heavy or None,
            "notify": list(notify) if notify is not None else None,
            "mail": list(mail) if mail is not None else None,
            "webhook": webhook,
        }
        body = {key: value for key, value in options.items() if value is not None}
        body["command"] = list(command)
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        try:
            answer = self._ask("POST", "/jobs", body=body, headers=headers)
        except Unreachable:
            # The answer may have been lost: the same key does not make a second job.
            answer = self._ask("POST", "/jobs", body=body, headers=headers)
        return int(answer["job"])

    def jobs(
        self,
        *,
        ended: bool = False,
        group: Optional[str] = None,
        queue: Optional[str] = None,
        user: Optional[str] = None,
        name: Optional[str] = None,
        state: Optional[str] = None,
    ) -> Iterator[Job]:
        """Your jobs, or those of all users for an admin; finished ones too if you ask for them. A group is one with those below it, a name may
        end in *, states have commas between them."""
        choice = {"group": group, "queue": queue, "user": user, "name": name, "state": state}
        query: Dict[str, str] = {key: value for key, value in choice.items() if value is not None}
        if ended:
            query["ended"] = "true"
        while True:
            answer = self._ask("GET", "/jobs", query)
            for job in answer["jobs"]:
                yield of(Job, job)
            if answer["next"] is None:
                return
            query = {**query, "page": answer["next"]}

    def job(self, job: Target) -> Job:
        """A job, or an element of an array (`12[3]`). Of an array as a whole it is the first line; `elements` has all."""
        return self.elements(job)[0]

    def elements(self, job: Target) -> List[Job]:
        """All lines of a job: those of an array are its elements, waiting ones together."""
        return [of(Job, one) for one in self._ask("GET", "/jobs/" + _part(job))["jobs"]]

    def wait(self, job: Target, *, timeout: Optional[float] = None) -> Job:
        """Waits until all tasks of a job have ended; of an array it returns the first one that failed, or the last one. Raises TimeoutError
        if `timeout` seconds do not suffice."""
        begin, pause = time.monotonic(), 0.05
        while True:
            lines = self.elements(job)
            if all(line.ended is not None for line in lines):
                failed = [line for line in lines if line.state != "done"]
                return failed[0] if failed else lines[-1]
            if timeout is not None and time.monotonic() - begin + pause > timeout:
                raise TimeoutError("job %s has not ended within %s s" % (_id(job), timeout))
            time.sleep(pause)
            pause = min(pause * 1.5, 2.0)

    def output(self, job: Target, *, errors: bool = False, offset: Optional[int] = None, most: int = 1 << 16) -> Output:
        """The end of what a job has written, or what begins at `offset`; at most `most` bytes."""
        query = {"stream": "errors" if errors else "output", "bytes": str(most)}
        if offset is not None:
            query["offset"] = str(offset)
        return of(Output, self._ask("GET", "/jobs/%s/output" % _part(job), query))

    def explain(self, job: Target) -> Reasons:
        """Why a job waits, or why it ran where it ran."""
        return of(Reasons, self._ask("GET", "/jobs/%s/explanation" % _part(job)))

    def history(self, job: Target) -> List[Attempt]:
        """The finished starts of a job, with what they used."""
        answer = self._ask("GET", "/jobs/%s/history" % _part(job))
        return [of(Attempt, one) for one in answer["attempts"]]

    def kill(self, job: Target) -> int:
        """Ends a job; the number of its tasks that this concerns. The same holds for the next three."""
        return self._change(job, "kill")

    def hold(self, job: Target) -> int:
        """Keeps a job from starting, or suspends it if it runs."""
        return self._change(job, "hold")

    def release(self, job: Target) -> int:
        """Lets a job start or continue that was held."""
        return self._change(job, "release")

    def requeue(self, job: Target) -> int:
        """Starts a job again."""
        return self._change(job, "requeue")

    def signal(self, job: Target, signal: str) -> int:
        """Sends the processes of a job a signal: HUP, QUIT, USR1, USR2 or WINCH."""
        return int(self._ask("POST", "/jobs/%s/signal" % _part(job), body={"signal": signal})["tasks"])

    def modify(self, job: Target, **changes: Any) -> int:
        """Changes a job that has not ended, as `forebay modify` does: `modify(12, time_limit="4 h", queue="night")`; "none" removes what was
        set. Returns how many of its tasks have not ended."""
        return int(self._ask("POST", "/jobs/%s/modify" % _part(job), body=changes)["tasks"])

    def hosts(self) -> List[Host]:
        """All hosts."""
        return [of(Host, one) for one in self._ask("GET", "/hosts")["hosts"]]

    def groups(self) -> List[JobGroup]:
        """Your job groups: those with a limit, and those of jobs that the grid knows."""
        return [of(JobGroup, one) for one in self._ask("GET", "/groups")["groups"]]

    def limit_group(self, group: str, limit: Optional[int]) -> None:
        """Limits how many tasks of a group and of those below it are on hosts at once; None takes the limit away."""
        self._ask("POST", "/groups", body={"group": group, "limit": limit})

    def delete_group(self, group: str) -> None:
        """Deletes a group and those below it, with their limits. Refused while jobs in them have not ended."""
        self._ask("DELETE", "/groups", {"group": group})

    def queues(self) -> List[Queue]:
        """All queues."""
        return [of(Queue, one) for one in self._ask("GET", "/queues")["queues"]]

    def alerts(self) -> List[Alert]:
        """What is wrong, and what was."""
        return [of(Alert, one) for one in self._ask("GET", "/alerts")["alerts"]]

    def events(self) -> Iterator[Event]:
        """Changes of your jobs and of hosts as they happen. Ends when the server ends the stream, after a quarter of an hour; then list the
        jobs again, and follow on."""
        with self._open("GET", "/events") as answer:
            name = ""
            for line in answer:
                text = line.decode().rstrip("\r\n")
                if text.startswith("event: "):
                    name = text[7:]
                elif text.startswith("data: "):
                    yield Event(name, json.loads(text[6:]))

    def ask(self, method: str, path: str, query: Optional[Dict[str, str]] = None, body: Optional[Dict[str, Any]] = None) -> Any:
        """Any request of the API (docs/openapi.json), such as `ask("GET", "/usage", {"by": "user"})`; the answer as Python objects."""
        return self._ask(method, path, query, body)

    def _change(self, job: Target, verb: str) -> int:
        return int(self._ask("POST", "/jobs/%s/%s" % (_part(job), verb))["tasks"])

    def _ask(
        self,
        method: str,
        path: str,
        query: Optional[Dict[str, str]] = None,
        body: Optional[Dict[str, Any]] = None,
        headers: Optional[Dict[str, str]] = None,
    ) -> Any:
        with self._open(method, path, query, body, headers) as answer:
            try:
                text = answer.read()
            except OSError as error:
                raise Unreachable("%s does not answer: %s" % (self.url, error)) from error
            return json.loads(text) if text else None

    def _open(
        self,
        method: str,
        path: str,
        query: Optional[Dict[str, str]] = None,
        body: Optional[Dict[str, Any]] = None,
        headers: Optional[Dict[str, str]] = None,
    ) -> Any:
        url = self.url + "/api/v1" + path + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
        request.add_header("Authorization", "Bearer " + self._token)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            raise _problem(error) from None
        except OSError as error:
            raise Unreachable("%s does not answer: %s" % (self.url, error)) from error


def _problem(error: urllib.error.HTTPError) -> Problem:
    try:
        said = json.loads(error.read())
        return Problem(str(said["kind"]), str(said["detail"]), error.code)
    except (ValueError, KeyError, TypeError, OSError):
        # A proxy, for instance, answers in its own words.
        return Problem("unknown", "%s %s" % (error.code, error.reason), error.code)


def _id(job: Target) -> str:
    return job.id if isinstance(job, Job) else str(job)


def _part(job: Target) -> str:
    return urllib.parse.quote(_id(job), safe="")
