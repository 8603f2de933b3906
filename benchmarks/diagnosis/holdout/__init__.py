"""Cases written without sight of the rules, to measure the diagnosis out of sample.

Modules whose name starts with `second` to `fifth` hold later sets, each written after the one
before was measured.
"""
