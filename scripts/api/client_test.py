"""Uses the client that was generated from the description of the API: a job from its submission to its output."""

import os
import sys
import time

sys.path.insert(0, ".")
from client import AuthenticatedClient  # noqa: E402
from client.api.jobs import explain_job, job_output, kill_job, list_jobs, show_job, submit_job  # noqa: E402
from client.models import NewJob, Problem  # noqa: E402

client = AuthenticatedClient(base_url=os.environ["URL"], token=os.environ["TOKEN"])
accepted = submit_job.sync(client=client, body=NewJob(command=["echo", "hello"], name="generated", directory=os.getcwd()))
job = str(accepted.job)
for _ in range(300):
    shown = show_job.sync(job, client=client).jobs[0]
    if shown.state == "done":
        break
    time.sleep(0.1)
assert (shown.state, shown.name, shown.exit_code) == ("done", "generated", 0), shown
assert shown.submitted <= shown.ended, "times are times"
assert job_output.sync(job, client=client).text == "hello\n"
assert explain_job.sync(job, client=client).reasons
assert [one.id for one in list_jobs.sync(client=client, ended=True).jobs] == [job]
refused = kill_job.sync(job, client=client)
assert isinstance(refused, Problem) and refused.kind == "wrong_state", refused
print("the generated client works")
