"""dask-jobqueue: a cluster of two workers, over Slurm's or LSF's commands."""
import sys

from dask.distributed import Client
from dask_jobqueue import LSFCluster, SLURMCluster

common = dict(cores=1, memory="500MB", processes=1, interface="lo", walltime=None, log_directory=sys.argv[2])
if sys.argv[1] == "slurm":
    cluster = SLURMCluster(**{**common, "walltime": "00:10:00"})
else:
    cluster = LSFCluster(**{**common, "walltime": "00:10"}, lsf_units="kb")
with cluster, Client(cluster) as client:
    cluster.scale(jobs=2)
    client.wait_for_workers(2, timeout=60)
    assert client.submit(sum, range(100)).result(timeout=60) == 4950
    squares = client.gather(client.map(lambda number: number * number, range(50)))
    assert squares[-1] == 49 * 49
print("dask-jobqueue:", sys.argv[1], "well")
