"""Cases written without sight of the rules, to measure the diagnosis out of sample.

Modules whose name starts with `second` hold a later set, written after the first was measured.
"""
