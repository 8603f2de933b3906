"""Reads the structure of models."""
