"""From a profiler's file to decode steps: kernels, layers, breakdown and difference.

It may import machine.
"""
