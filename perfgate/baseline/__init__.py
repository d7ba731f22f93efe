"""Stored visits: their lineage, their files, their promotion, and judging against them.

It may import judge and below.
"""
