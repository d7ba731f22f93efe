"""Drills: a build that is made worse on purpose, by a plant of known size, must be blocked for the right reason.

It may import everything but the steps of a job and the commands.
"""
