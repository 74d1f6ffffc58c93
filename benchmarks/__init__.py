"""Ratios measured side by side in one run: `python -m benchmarks [NAME …]` prints them; no test asserts one."""
