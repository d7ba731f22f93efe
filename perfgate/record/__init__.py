"""What a run keeps on disk, and the checks that it is what was planned.

It may import scenario and below.
"""
