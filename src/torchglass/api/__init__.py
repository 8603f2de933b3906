"""The verbs: each joins a target to a capture, a store or a view, and does nothing else.

A target is a live model, the name of one ("net.py:Net", "torchvision.models:resnet18"), a
checkpoint, a recorded run, or what a verb gave back.
"""
