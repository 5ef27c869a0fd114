"""How the runs of a sweep are started: one after the other, or on all of a machine's devices.

``plan`` composes the runs and writes them down, ``devices`` divides the machine, ``processes``
starts a process for each run and shows what it says, ``start`` puts these together for each
launcher, and ``unfinished`` goes on with a sweep.
"""
