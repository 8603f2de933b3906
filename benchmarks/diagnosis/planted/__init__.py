"""Trainings with a mistake, by the family of its kind."""
