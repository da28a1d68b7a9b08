"""submitit: one function, an array of them, and one that fails."""
import os
import sys

import submitit


def double(number):
    return 2 * number, os.environ["SLURM_JOB_ID"], submitit.JobEnvironment().num_tasks


def fail():
    raise ValueError("as it should")


executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=5, cpus_per_task=1)
job = executor.submit(double, 21)
assert job.result()[0] == 42, job.result()
state = job.watcher.get_state(job.job_id, mode="force")
assert state == "COMPLETED", state
executor.update_parameters(slurm_array_parallelism=2)
array = executor.map_array(double, range(4))
results = [job.result() for job in array]
assert [result[0] for result in results] == [0, 2, 4, 6], results
assert len({result[1] for result in results}) == 4, results
failed = executor.submit(fail)
try:
    failed.result()
except submitit.core.utils.FailedJobError as error:
    assert "as it should" in str(error), error
else:
    raise AssertionError("a job that fails has no result")
print("submitit: well")
