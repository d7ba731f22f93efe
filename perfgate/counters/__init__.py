"""Counters of ncu, what a GPU can do at most, and what a decode step must move.

It may import trace and machine.
"""
