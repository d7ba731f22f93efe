"""From records to an outcome: the rule, its checks and its cautions.

It may import record and below, never capture.
"""
