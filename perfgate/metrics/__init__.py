"""What one trial measured, and the value of each metric in it.

It may import counters, trace and machine.
"""
