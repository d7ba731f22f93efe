"""A run on a Ray cluster: each cell is a task, and what it measures comes back as it grows.

Ray decides where and when a task runs. A detached actor on the head node owns the tasks and keeps what came back, so
that the command which began the run may end and another one goes on. Only this room imports Ray.
"""
