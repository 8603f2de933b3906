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
    """The summary of a model as text: another name of the same.

    >>> import torch
    >>> print(generate_text_summary(torch.nn.ReLU()).splitlines()[3])
    ReLU    ReLU            0
    """
    return generate_model_summary(model)


def generate_json_summary(model: object) -> str:
    """The summary of a model as JSON.

    >>> import json, torch
    >>> json.loads(generate_json_summary(torch.nn.Linear(2, 3)))["totals"]["parameters"]
    9
    """
    return summary(model).to_json()


def generate_html_summary(model: object) -> str:
    """The summary of a model as one HTML page.

    >>> import torch
    >>> generate_html_summary(torch.nn.ReLU())[:15]
    '<!doctype html>'
    """
    return summary(model).to_html()
