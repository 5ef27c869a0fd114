"""What a run logs when it ends."""

from dataclasses import replace

import pytest
from support.report_pages import run

from rdm_solo.train.reporting import FINAL_EPOCHS, closing_sentence, final_table

UNTRAINED = {"val/knn_acc1": 20.0, "val/knn_pixels": 40.0, "erank/online": 3.0}


def test_the_outcome_compares_knn_with_the_untrained_network_and_the_pixels():
    finished = replace(run(val__knn_acc1=[50, 65, 60]), untrained=UNTRAINED)
    knn, gap, health = closing_sentence(finished).split("; ")
    assert knn == "kNN 60.0 % (untrained 20.0 %, raw pixels 40.0 %)"
    assert gap.endswith("every epoch")
    assert finished.health.good
    assert finished.health.answer.endswith(health)


@pytest.mark.parametrize(
    ("gap", "ending"),
    [([1, 1, -1], "in 2 of 3 epochs"), ([0, 0, 0], "equal effective ranks of both branches")],
)
def test_the_outcome_counts_the_epochs_in_which_the_target_leads(gap, ending):
    accuracy, leading, _ = closing_sentence(run(erank__gap=gap)).split("; ")
    assert accuracy == "online acc. 80.0 %"  # kNN was not measured
    assert leading.endswith(ending)


def test_the_outcome_of_a_collapse_has_its_number():
    collapsed = run(feature__spread=[0.9, 0.01, 0.01])
    assert "0.01" in closing_sentence(collapsed)
    diverged = replace(collapsed, diverged=4)
    assert closing_sentence(diverged).endswith("diverged in epoch 4")


def test_the_final_table_has_the_epochs_that_measured_every_column():
    knn = [float("nan")] * 23
    knn[::5] = [50.0] * 5
    knn[-1] = 50.0
    finished = replace(run(epochs=23, val__knn_acc1=knn), untrained=UNTRAINED)
    head, *rows = [line.split() for line in final_table(finished).splitlines()]
    assert head == ["epoch", "0", "1", "6", "11", "16", "23"]
    assert len(rows) == FINAL_EPOCHS
    assert rows[0][1:] == ["-", *["-0.500"] * 5]
    assert rows[1][1:] == ["20.0", *["50.0"] * 5]
    (online,) = [row for row in rows if row[:2] == ["erank,", "online"]]
    assert float(online[2]) == 3.0
    assert float(online[-1]) == pytest.approx(finished.last("erank/online"), abs=5e-3)
