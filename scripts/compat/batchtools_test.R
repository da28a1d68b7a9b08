# batchtools: jobs by the templates that it ships for Slurm or LSF, an array (Slurm), one job that fails and one that is killed.
library(batchtools)
arguments <- commandArgs(TRUE)
system <- arguments[1]
folder <- arguments[2]

registry <- makeRegistry(file.path(folder, "registry"), conf.file = NA)
registry$cluster.functions <- if (system == "slurm") {
  makeClusterFunctionsSlurm("slurm-simple", fs.latency = 10)
} else {
  makeClusterFunctionsLSF("lsf-simple", fs.latency = 10)
}
resources <- if (system == "slurm") {
  list(walltime = 300, memory = 500, ncpus = 1)
} else {
  list(walltime = 300, memory = "500MB", queue = "normal")
}

batchMap(function(x) {
  if (x == 5) stop("as it should")
  if (x == 6) Sys.sleep(605)
  2 * x
}, x = 1:6)
doubled <- findJobs(x <= 4)
failing <- findJobs(x == 5)
endless <- findJobs(x == 6)

if (system == "slurm") {
  # Two of them as one array, the others on their own.
  submitJobs(data.frame(job.id = 1:2, chunk = 1L), resources = c(resources, chunks.as.arrayjobs = TRUE))
  submitJobs(3:4, resources = resources)
} else {
  submitJobs(doubled, resources = resources)
}
stopifnot(waitForJobs(doubled, sleep = 1, timeout = 120))
stopifnot(identical(unlist(reduceResultsList(doubled)), c(2, 4, 6, 8)))

submitJobs(failing, resources = resources)
stopifnot(!waitForJobs(failing, sleep = 1, timeout = 120))
stopifnot(grepl("as it should", getErrorMessages(failing)$message))

submitJobs(endless, resources = resources)
for (look in 1:240) {
  if (nrow(findRunning(endless)) == 1 && nrow(findStarted(endless)) == 1) break
  Sys.sleep(0.5)
}
stopifnot(nrow(findOnSystem(endless)) == 1)
stopifnot(killJobs(endless)$killed)
for (look in 1:240) {
  if (nrow(findOnSystem(endless)) == 0) break
  Sys.sleep(0.5)
}
stopifnot(nrow(findOnSystem(endless)) == 0)
cat("batchtools:", system, "well\n")
