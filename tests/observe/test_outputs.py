"""From a step's calls to rows by branch and view."""

import pytest
import torch

from rdm_solo.ground.errors import UserError
from rdm_solo.observe.outputs import combine, rows

PROJECTION = {"projection": "target"}


def random_rows(*lengths: int) -> list[torch.Tensor]:
    return [torch.randn(n, 4) for n in lengths]


@pytest.mark.parametrize(
    "form",
    [
        lambda z: (z, z.mean()),
        lambda z: {"loss": None, "z": z},
        lambda z: [{"z": z}],
        lambda z: z[:, None].expand(-1, 3, -1),
        lambda z: z[:, :, None, None].expand(-1, -1, 2, 2),
    ],
    ids=["tuple", "dict", "nested", "tokens", "map"],
)
def test_outputs_of_any_form_become_rows(form):
    z = torch.randn(5, 4)
    torch.testing.assert_close(rows(form(z), "head"), z)


@pytest.mark.parametrize("output", [torch.ones(()), None, torch.ones(5, 4).long()])
def test_outputs_without_rows_are_refused(output):
    with pytest.raises(UserError, match="head"):
        rows(output, "head")


@pytest.mark.parametrize("views", [None, 2])
def test_small_crops_of_one_branch_are_left_out(views):
    """They follow the large ones."""
    calls = random_rows(10, 10, 5, 5)
    outputs = combine({"online": calls, "target": calls[:2], "features": calls}, views, PROJECTION)
    large = torch.cat(calls[:2])
    for x in (outputs.online, outputs.target, torch.cat(outputs.features)):
        assert torch.equal(x, large)
    assert (outputs.positive is None) is (views is None)


def test_accumulated_batches_are_not_taken_for_views():
    a1, a2, b1, b2 = random_rows(10, 10, 6, 6)
    calls = [a1, a2, b1, b2]
    outputs = combine({"online": calls, "target": calls, "features": calls}, 2, PROJECTION)
    first_views, second_views = torch.cat([a1, b1]), torch.cat([a2, b2])
    assert torch.equal(outputs.target, torch.cat([first_views, second_views]))
    assert torch.equal(outputs.positive, torch.cat([second_views, first_views]))
    assert [len(view) for view in outputs.features] == [16, 16]


@pytest.mark.parametrize("lengths", [(20,), (10, 10, 10), (10, 6)])
def test_views_that_cannot_be_told_apart_give_no_positives(lengths):
    calls = random_rows(*lengths)
    outputs = combine({"online": calls, "target": calls}, 2, PROJECTION)
    assert outputs.positive is None
    assert torch.equal(outputs.target, torch.cat(calls))


def test_branches_of_different_widths_are_refused():
    calls = {"online": [torch.ones(4, 8)], "target": [torch.ones(4, 6)]}
    with pytest.raises(UserError, match="online="):
        combine(calls, None, PROJECTION)
