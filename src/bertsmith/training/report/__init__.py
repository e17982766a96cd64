"""Reports: what a run found out, as one page that needs nothing else."""
