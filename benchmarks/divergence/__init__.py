"""Do we name the op at which a port of a model diverges, and stay silent on correct ports?"""
