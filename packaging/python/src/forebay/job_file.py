"""Job files (docs/formats/job-file.md): written from Python, submitted with the program `forebay`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Dict, List, Optional, Union

Option = Union[str, int, bool, List[str]]


@dataclasses.dataclass
class JobFile:
    """A job: a command or the text of a script, and what it needs. `options` has further options of `forebay submit` by their long
    names, such as `{"notify": "fail", "input": ["/data/a"]}`."""

    command: Optional[List[str]] = None
    script: Optional[str] = None
    name: Optional[str] = None
    queue: Optional[str] = None
    slots: Optional[int] = None
    mem: Optional[Union[str, int]] = None
    time_limit: Optional[str] = None
    depends: Optional[str] = None
    output: Optional[str] = None
    error: Optional[str] = None
    rerunnable: bool = False
    checkpoint: bool = False
    env: Dict[str, str] = dataclasses.field(default_factory=dict)
    options: Dict[str, Option] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """The job file, in TOML."""
        if (self.command is None) == (self.script is None):
            raise ValueError("give either a command or a script")
        values: Dict[str, Optional[Option]] = {
            "name": self.name,
            "queue": self.queue,
            "slots": self.slots,
            "mem": self.mem,
            "time_limit": self.time_limit,
            "depends": self.depends,
            "output": self.output,
            "error": self.error,
            "rerunnable": self.rerunnable or None,
            "checkpoint": self.checkpoint or None,
            "command": self.command,
            "script": self.script,
        }
        for key in self.options:
            if not re.fullmatch("[a-z][a-z0-9_-]*", key) or values.get(key) is not None or key == "env":
                raise ValueError("options: %r is not an option of its own" % key)
        values.update(self.options)
        lines = ["%s = %s" % (key, _toml(value)) for key, value in values.items() if value is not None]
        if self.env:
            lines += ["[env]"] + ["%s = %s" % (_toml(key), _toml(value)) for key, value in self.env.items()]
        return "\n".join(lines) + "\n"

    def write(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the job file; its name has to end in `.toml`."""
        if not os.fspath(path).endswith(".toml"):
            raise ValueError("%s: the name of a job file in TOML ends in .toml" % os.fspath(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text())

    def submit(self, grid: Optional[str] = None) -> int:
        """Submits the job on this machine with `forebay submit`, and returns its number. `grid` is the folder of the grid [default: the
        environment variable FOREBAY_GRID]. Raises subprocess.CalledProcessError, whose `stderr` has the reason, if it is refused."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.toml")
            self.write(path)
            command = [program(), "submit", "--json", "--file", path]
            if grid is not None:
                command += ["--grid", grid]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        return int(json.loads(said.stdout)["job"])


def program() -> str:
    """The program `forebay`: that of this package, or the one on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "forebay")
    found = beside if os.access(beside, os.X_OK) else shutil.which("forebay")
    if found is None:
        raise FileNotFoundError("the program forebay is neither beside %s nor on PATH" % sys.executable)
    return found


def _toml(value: Option) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    return "[%s]" % ", ".join(_string(one) for one in value)


def _string(text: str) -> str:
    """A basic string of TOML: as in JSON, but that it knows no surrogates, and DEL is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
