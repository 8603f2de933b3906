"""How long modules, ops and their backwards take, in runs that measure nothing else."""
