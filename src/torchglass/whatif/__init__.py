"""Experiments on copies of a model: what would it cost, and what would change?"""
