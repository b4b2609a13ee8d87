from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from classwise.errors import UserError
from classwise.report.figures.sheet import GAP, picture_sheet


def test_pictures_lie_where_they_should() -> None:
    colours = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    masks = torch.eye(4, 5).bool()[None]
    sheet = np.asarray(Image.open(io.BytesIO(picture_sheet([colours, masks, colours.float()[:, :1] / 255], scale=2))))
    assert sheet.shape == (2 * (3 * 4 + 2 * GAP), 2 * (2 * 5 + GAP), 3)
    small = sheet[::2, ::2]
    assert np.array_equal(sheet[1::2, 1::2], small), "squares"
    assert np.array_equal(small[:4, 5 + GAP :], colours[1].permute(1, 2, 0).numpy())
    assert np.array_equal(small[4 + GAP : 8 + GAP, :5, 1], 255 * np.eye(4, 5))
    assert np.array_equal(small[8 + 2 * GAP :, :5, 2], colours[0, 0].numpy())
    assert (small[4 : 4 + GAP] == 255).all()
    assert (small[4 + GAP : 8 + GAP, 5:] == 255).all(), "nothing beside the one mask"


@pytest.mark.parametrize("rows", [[], [torch.zeros(0, 3, 4, 4)], [torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 5)]])
def test_nothing_to_show(rows: list[torch.Tensor]) -> None:
    with pytest.raises(UserError, match="a sheet needs rows of pictures of one size"):
        picture_sheet(rows)
