"""Contact sheets: fields that hold several images, and boxes on them."""
import numpy as np
from pipec.cli.sheet import OUTLINE, PAPER, as_image, contact_sheet
from pipec.cli.show import described


def test_several_images_of_a_field_stand_side_by_side():
    views = np.stack([np.full((3, 20, 20), v, np.uint8) for v in (10, 200, 90, 60, 250)])
    sheet = np.asarray(as_image(views))
    assert sheet.shape == (44, 66, 3) and [int(sheet[y, x, 0]) for y, x in ((5, 5), (5, 25), (5, 50), (30, 5), (30, 25))] == [
        10, 200, 90, 60, 250]
    assert tuple(sheet[30, 50]) == PAPER
    assert as_image(np.zeros((40, 8, 8, 3), np.uint8)).size == (40, 40), "sixteen at most"
    assert as_image(np.zeros((0, 8, 8, 3))) is None and as_image(np.zeros((2, 8, 8, 5))) is None


def test_texts_with_gaps_in_one_line():
    words = np.ma.MaskedArray(np.array(["a", "b", "c", "d", "e"]), [False, True, False, False, False])
    assert described(words) == "'a', ?, 'c', 'd' …"
    assert described(words.astype(object)) == "'a', ?, 'c', 'd' …" and described(np.array(["x"])) == "'x'"


def test_boxes_are_drawn_where_they_are():
    image, boxes = np.zeros((176, 176, 3), np.uint8), np.array([[16, 32, 80, 96], [0, 0, 0, 0]], np.float32)
    sheet = np.asarray(contact_sheet([{"image": image, "boxes": boxes}]))[12:, 12:]
    red = (sheet[:176, :176] == OUTLINE).all(-1)
    assert [int(v) for v in (np.flatnonzero(red.any(0))[[0, -1]])] == [16, 79]
    assert [int(v) for v in (np.flatnonzero(red.any(1))[[0, -1]])] == [32, 95] and not red[60, 40]
