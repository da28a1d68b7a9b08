"""Uses the module `forebay` on the grid of FOREBAY_URL; the argument is the description of the API."""

import dataclasses
import datetime
import inspect
import json
import os
import sys
import threading

import forebay

# Every view has what the description says, and a submission takes every option.
schemas = json.load(open(sys.argv[1]))["components"]["schemas"]
for name in ["Attempt", "Host", "HostReason", "Job", "JobGroup", "JobInput", "JobOptions", "Output", "Queue", "Reasons", "Used"]:
    fields = {field.name for field in dataclasses.fields(getattr(forebay, name))}
    assert fields == set(schemas[name]["properties"]), name
assert {field.name for field in dataclasses.fields(forebay.Alert)} == set(schemas["AlertView"]["properties"])
options = set(inspect.signature(forebay.Client.submit).parameters) - {"self"}
assert options == set(schemas["NewJob"]["properties"]), options

grid = forebay.Client()
ready = threading.Event()
heard = []


def listen():
    for event in grid.events():
        heard.append(event)
        ready.set()
        if event.name == "job":
            return


listener = threading.Thread(target=listen, daemon=True)
listener.start()
assert ready.wait(50), "the stream begins"

here = os.getcwd()
job = grid.submit(["sh", "-c", "echo said; echo wrong >&2; sleep 2"], name="one", directory=here, error="%J.err", memory="64M", inputs=["/etc"])
done = grid.wait(job, timeout=50)
assert (done.state, done.name, done.exit_code, done.job) == ("done", "one", 0, job), done
assert isinstance(done.submitted, datetime.datetime) and done.submitted <= done.ended
assert done.options.memory_bytes == 64 << 20 and done.options.inputs[0].path == "/etc"
assert grid.output(done).text == "said\n" and grid.output(job, errors=True).text == "wrong\n"
assert grid.output(job, offset=2).text == "id\n"
assert grid.explain(job).reasons and grid.history(job)[0].outcome == "exit value 0"
assert [one.id for one in grid.jobs(ended=True)] == [str(job)] and list(grid.jobs()) == []
listener.join(50)
assert heard[0].name == "ready" and heard[-1].name == "job" and heard[-1].data["id"] == str(job), heard

array = grid.submit(["sh", "-c", "exit $((FOREBAY_INDEX - 1))"], name="many[1-2]", directory=here)
failed = grid.wait(array, timeout=50)
assert (failed.state, failed.id, len(grid.elements(array))) == ("exited", "%d[2]" % array, 2), failed

held = grid.submit(["sleep", "600"], hold=True)
assert grid.job(held).state == "held" and grid.release(held) == 1
assert grid.kill(held) == 1 and grid.wait(held, timeout=50).state == "killed"
try:
    grid.kill(held)
    raise SystemExit("killed twice")
except forebay.Problem as problem:
    assert (problem.kind, problem.status) == ("wrong_state", 409) and str(held) in str(problem), problem
try:
    grid.wait(grid.submit(["sleep", "600"], hold=True), timeout=0.01)
    raise SystemExit("waited in vain")
except TimeoutError:
    pass

grid.limit_group("/risk", 0)
full = grid.submit(["true"], group="/risk/daily", warning="USR1@5min", directory=here)
assert [one.id for one in grid.jobs(group="/risk")] == [str(full)] and list(grid.jobs(group="/other")) == []
assert (grid.job(full).state, grid.job(full).group, grid.job(full).options.warning) == ("pending", "/risk/daily", "USR1@5 min")
assert [(of.group, of.limit) for of in grid.groups() if of.group == "/risk"] == [("/risk", 0)]
grid.limit_group("/risk", None)
assert grid.wait(full, timeout=50).state == "done"
grid.delete_group("/risk")

assert {host.state for host in grid.hosts()} == {"up"} and any(queue.is_default for queue in grid.queues())
assert grid.alerts() == [] and grid.ask("GET", "/me")["admin"] is True
for unusable, error in [(dict(token="nonsense"), forebay.Problem), (dict(url="http://127.0.0.1:1"), forebay.Unreachable)]:
    try:
        forebay.Client(**unusable).hosts()
        raise SystemExit("accepted: %s" % unusable)
    except error:
        pass

# Job files, with the program.
file = forebay.JobFile(script="#!/bin/sh\necho \"$WORD\"\n", name="file", env={"WORD": "a \"b\" \\ c"}, options={"hold": True})
number = file.submit()
assert grid.job(number).state == "held" and grid.release(number) == 1 and grid.wait(number, timeout=50).state == "done"
assert grid.output(number).text == "a \"b\" \\ c\n"
for wrong in [forebay.JobFile(), forebay.JobFile(command=["a"], options={"com mand": 1})]:
    try:
        wrong.text()
        raise SystemExit("accepted: %s" % wrong)
    except ValueError:
        pass
print("all is well")
