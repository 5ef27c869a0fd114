"""How the runs of a sweep are started: here one after the other, on all devices of this machine, on
SLURM or on Ray.

``plan`` composes the runs and writes them down, and ``start`` hands them to a launcher.

``local``, ``slurm`` and ``ray`` are launchers, by the name that is typed. Each has

- ``check(launcher, trainer)``, which raises ValueError, with a sentence, where a run's ``trainer``
  options or the launcher's own cannot be used, or a package or program is missing;
- ``run(jobs, folder, launcher)``, which starts the jobs and waits for them. It returns the reasons
  of failed runs that have left none in their folder, by folder; None where the jobs were only
  submitted. It imports the launcher's package itself, since all launchers are imported.

A run is the command ``python -m rdm_solo.train`` with a job's options and variables
(``rdm_solo.train.environment``). Whether it has ended well is asked of its folder.

What launchers share: ``devices`` divides a machine, ``processes`` starts runs there, ``warm`` forks
them from one process, ``following`` watches runs that go on elsewhere by the files they write,
``gpus`` says whether runs ask a cluster for GPUs, ``board`` shows them, and ``unfinished`` goes on
with a sweep.
"""
