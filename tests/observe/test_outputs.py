"""From a step's calls to rows by branch and view."""

import pytest
import torch

from rdm_solo.ground.errors import UserError
from rdm_solo.observe.outputs import combine, rows

PROJECTION = {"projection": "target"}


def random_rows(*lengths):
    return [torch.randn(n, 4) for n in lengths]


def test_outputs_of_any_form_become_rows_or_are_refused():
    z = torch.randn(5, 4)
    mapping = {"loss": None, "z": (z, z.mean())}
    tokens = z[:, None].expand(5, 3, 4)
    maps = z[:, :, None, None].expand(5, 4, 2, 2)
    for output in (mapping, tokens, maps):
        torch.testing.assert_close(rows(output, "head"), z)
    integers = torch.arange(20).reshape(5, 4)
    for output in (None, torch.ones(5), integers):
        with pytest.raises(UserError, match="head"):
            rows(output, "head")


@pytest.mark.parametrize("views", [None, 2])
def test_small_crops_of_one_branch_are_left_out(views):
    """They follow the large ones."""
    calls = random_rows(10, 10, 5, 5)
    step = {"online": calls, "target": calls[:2], "features": calls}
    outputs = combine(step, views, PROJECTION)
    large = torch.cat(calls[:2])
    features = torch.cat(outputs.features)
    for x in (outputs.online, outputs.target, features):
        assert torch.equal(x, large)
    assert (outputs.positive is None) is (views is None)


def test_accumulated_batches_are_not_taken_for_views():
    a1, a2, b1, b2 = calls = random_rows(10, 10, 6, 6)
    outputs = combine({"online": calls, "target": calls, "features": calls}, 2, PROJECTION)
    by_view = torch.cat([a1, b1, a2, b2])
    assert torch.equal(outputs.target, by_view)
    assert torch.equal(outputs.positive, by_view.roll(16, 0))
    assert [len(view) for view in outputs.features] == [16, 16]


@pytest.mark.parametrize("lengths", [(20,), (10, 10, 10), (10, 6)])
def test_views_that_cannot_be_told_apart_give_no_positives(lengths):
    calls = random_rows(*lengths)
    outputs = combine({"online": calls, "target": calls}, 2, PROJECTION)
    assert outputs.positive is None
    assert torch.equal(outputs.target, torch.cat(calls))


def test_branches_of_different_widths_are_refused():
    calls = {"online": random_rows(4), "target": [torch.ones(4, 6)]}
    with pytest.raises(UserError, match="online="):
        combine(calls, None, PROJECTION)
