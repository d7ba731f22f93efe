"""Where in a layer a gemm is, which its name cannot tell."""

PLACES = ("", "qkv", "out", "gate-up", "down", "lm-head")
"""Empty for every other kernel."""
