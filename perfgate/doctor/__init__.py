"""Whether this machine can measure, and whether a scenario can run on it.

It may import capture and below.
"""
