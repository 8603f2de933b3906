"""The names under which rp's document writes what a model is."""

from __future__ import annotations

from torchglass.api.models import summary


def generate_model_summary(model: object) -> str:
    """The summary of a model as text.

    >>> import torch
    >>> print(generate_model_summary(torch.nn.ReLU()).splitlines()[3])
    ReLU    ReLU            0
    """
    return str(summary(model))


def generate_text_summary(model: object) -> str:
    """The summary of a model as text: another name of the same."""
    return generate_model_summary(model)


def generate_json_summary(model: object) -> str:
    """The summary of a model as JSON."""
    return summary(model).to_json()


def generate_html_summary(model: object) -> str:
    """The summary of a model as one HTML page."""
    return summary(model).to_html()
