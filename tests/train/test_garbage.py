"""What a run sets aside in Python's search for garbage is searched again after it."""

from __future__ import annotations

import gc

from support.world import processes

from rdm_solo.train.garbage import collected_soon


def counts(set_aside_before: bool, said) -> None:
    if set_aside_before:
        gc.freeze()
    found = [gc.get_freeze_count()]
    with collected_soon():
        found.append(gc.get_freeze_count())
    said.send([*found, gc.get_freeze_count()])


def test_a_run_gives_back_what_it_has_set_aside_and_nothing_else():
    """In processes of their own: in this one, the tests have set their objects aside."""
    for set_aside_before in (False, True):
        ours, theirs = processes.Pipe()
        process = processes.Process(target=counts, args=(set_aside_before, theirs))
        process.start()
        before, during, after = ours.recv()
        process.join()
        assert during > 0
        assert (before > 0) == set_aside_before == (after > 0)
