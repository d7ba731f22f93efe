"""Thin commands: each reads its options, calls one function and prints.

It may import every other room, inside the bodies of commands, so that --help is fast.
"""
