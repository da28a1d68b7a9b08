"""Parsl: one block of workers, over Slurm's or LSF's commands."""
import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import LSFProvider, SlurmProvider

common = dict(init_blocks=1, max_blocks=1, walltime="00:10:00", launcher=SimpleLauncher(), worker_init=f"export PATH={sys.argv[3]}:$PATH")
if sys.argv[1] == "slurm":
    provider = SlurmProvider(exclusive=False, cores_per_node=1, **common)
else:
    provider = LSFProvider(request_by_nodes=False, cores_per_node=1, cores_per_block=1, **common)


@parsl.python_app
def double(number):
    return 2 * number


executor = HighThroughputExecutor(label="grid", address="127.0.0.1", provider=provider, max_workers_per_node=1)
with parsl.load(Config(executors=[executor], run_dir=sys.argv[2], strategy="none")):
    assert [double(number).result(timeout=90) for number in range(3)] == [0, 2, 4]
print("parsl:", sys.argv[1], "well")
