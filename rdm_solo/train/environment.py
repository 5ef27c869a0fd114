"""Environment variables by which one process tells another what it is for.

A launcher writes them for each run of a sweep, and a run for the processes that Lightning starts
with the run's own command line. What the first process takes out of its environment, those do not
have; all else they inherit.
"""

# The config that was composed for the run, and its folder. Such a process reads that config instead
# of composing one from its command line. Inherited.
CONFIG, FOLDER = "RDM_SOLO_CONFIG", "RDM_SOLO_FOLDER"

# The folder of the sweep that the run belongs to. Inherited.
SWEEP = "RDM_SOLO_SWEEP"

# The process that has started the run on this machine; without it the run ends. Taken out.
PARENT = "RDM_SOLO_PARENT"

# A file for the name of the run's folder, once the run has begun there. Taken out.
TELL = "RDM_SOLO_TELL"

# Sentences on how the sweep has changed the run's config, one a line, for its log. Taken out.
NOTES = "RDM_SOLO_NOTES"

# Who has started this run of a sweep again: Ray, after its machine was lost, or resume=SWEEP.
# Inherited.
STARTED_AGAIN = "RDM_SOLO_STARTED_AGAIN"

# The threads of a process, which OpenMP and torch read when they are loaded. Inherited.
THREADS = "OMP_NUM_THREADS"
