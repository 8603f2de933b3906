"""Showing records to a person, one package for each place to look: none knows another."""
