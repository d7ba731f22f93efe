"""The user's repository: perfgate.toml, git, builds, and the files that `perfgate init` writes.

It may import scenario and machine.
"""
