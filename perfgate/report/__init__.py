"""Outcomes, profiles and findings as text, Markdown, JSON, JUnit and annotations.

It may import everything that it shows, never capture.
"""
