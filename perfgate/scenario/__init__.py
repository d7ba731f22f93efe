"""What a user declares in YAML, and the plan that it resolves to.

It may import metrics and what metrics may import.
"""
