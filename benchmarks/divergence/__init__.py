"""Do we name the op at which a port of a model parts from it, and stay silent on correct ports?"""
