"""Tensors described, measured, located and kept in files."""
