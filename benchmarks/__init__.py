"""Benchmarks of time and memory: ``python -m benchmarks.NAME`` measures and prints."""

import os

# torch's profiler prints lines about each start and stop; torch reads this when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
