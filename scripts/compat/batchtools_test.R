# batchtools: four jobs over sbatch, and their results.
library(batchtools)
folder <- commandArgs(TRUE)[1]
template <- file.path(folder, "slurm.tmpl")
writeLines(c("#!/bin/bash",
  "#SBATCH --job-name=<%= job.name %>",
  "#SBATCH --output=<%= log.file %>",
  "#SBATCH --time=5",
  "#SBATCH --ntasks=1",
  "Rscript -e 'batchtools::doJobCollection(\"<%= uri %>\")'"), template)
registry <- makeRegistry(file.path(folder, "registry"), conf.file = NA)
registry$cluster.functions <- makeClusterFunctionsSlurm(template, array.jobs = FALSE)
batchMap(function(x) 2 * x, x = 1:4)
submitJobs()
stopifnot(waitForJobs(sleep = 1, timeout = 120))
stopifnot(identical(unlist(reduceResultsList()), c(2, 4, 6, 8)))
cat("batchtools: well\n")
