"""This host: processes, locks, atomic files, its fingerprint, NVML, clocks and telemetry.

It imports nothing of perfgate but errors and units.
"""
