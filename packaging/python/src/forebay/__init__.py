"""Jobs of a Forebay grid from Python: a client of its REST API, and job files. Standard library only.

    import forebay

    grid = forebay.Client()                      # FOREBAY_URL and FOREBAY_TOKEN say where and who
    job = grid.submit(["python3", "month.py", "2026-10"], queue="night", memory="8G")
    done = grid.wait(job)
    print(done.state, done.used.cpu_seconds, grid.output(job).text)

    forebay.JobFile(command=["sort", "sales.csv"], slots=4, mem="8 GiB").write("sort.toml")

`forebay web serve` serves the API, `forebay web token` prints a token. The program `forebay` itself comes with this package.
"""

from .client import Client, Problem, Unreachable
from .job_file import JobFile
from .views import Alert, Attempt, Event, Host, HostReason, Job, JobGroup, JobInput, JobOptions, Output, Queue, Reasons, Used

__all__ = [
    "Alert",
    "Attempt",
    "Client",
    "Event",
    "Host",
    "HostReason",
    "Job",
    "JobFile",
    "JobGroup",
    "JobInput",
    "JobOptions",
    "Output",
    "Problem",
    "Queue",
    "Reasons",
    "Unreachable",
    "Used",
]
