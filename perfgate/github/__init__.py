"""The steps of a job on GitHub: plan, artifact, policy, comment and proposal.

It may import report and below.
"""
