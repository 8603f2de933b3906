"""What is wrong with a training, where, since when, and what to do.

Start in `rule.py` (what a rule is), then read one of the files of rules.
"""
