"""The verbs: each connects a target with a capture, a store or a view.

A target is a live model, the name of one ("net.py:Net", "torchvision.models:resnet18"), a
checkpoint, a recorded run, or the result of a verb.
"""
