"""Torchglass beside its peers, measured in one run."""
