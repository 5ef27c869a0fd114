"""The command."""

import os

# torch's profiler, which counts memory on a CPU, prints lines of its own about each start and stop;
# it reads this once, when torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from rdm_solo.bench.entry import main

main()
