"""Trainings without a mistake, which look as if they had one."""
