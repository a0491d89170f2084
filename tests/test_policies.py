"""AutoAugment's table for ImageNet, as its paper (arXiv 1805.09501, appendix) and torchvision list it."""
import re
from importlib import resources

NAMES = {"shear_x": 1, "rotate": 5, "colour": 7, "contrast": 8, "sharpness": 9, "posterize": 10, "solarize": 11,
         "autocontrast": 12, "equalize": 13, "invert": 14}
# Operation, probability, strength of 0 to 9 where the operation has one; twice.
PAIRS = """posterize 0.4 8, rotate 0.6 9
solarize 0.6 5, autocontrast 0.6
equalize 0.8, equalize 0.6
posterize 0.6 7, posterize 0.6 6
equalize 0.4, solarize 0.2 4
equalize 0.4, rotate 0.8 8
solarize 0.6 3, equalize 0.6
posterize 0.8 5, equalize 1.0
rotate 0.2 3, solarize 0.6 8
equalize 0.6, posterize 0.4 6
rotate 0.8 8, colour 0.4 0
rotate 0.4 9, equalize 0.6
equalize 0.0, equalize 0.8
invert 0.6, equalize 1.0
colour 0.6 4, contrast 1.0 8
rotate 0.8 8, colour 1.0 2
colour 0.8 8, solarize 0.8 7
sharpness 0.4 7, invert 0.6
shear_x 0.6 5, equalize 1.0
colour 0.4 0, equalize 0.6
equalize 0.4, solarize 0.2 4
solarize 0.6 5, autocontrast 0.6
invert 0.6, equalize 1.0
colour 0.6 4, contrast 1.0 8
equalize 0.8, equalize 0.6"""


def listed(text, name):
    """The list of numbers that a line `name = […][pair]` begins with."""
    (found,) = re.findall(rf"^  {name} = \[([^]]*)\]\[pair\]$", text, re.MULTILINE)
    return [float(number) for number in found.split(",")]


def test_auto_augment_has_the_published_pairs():
    text = resources.files("pipec.dsl").joinpath("std.pipe").read_text().partition("fn auto_augment")[2]
    columns = [("first", "often", "strong"), ("second", "then_often", "then_strong")]
    rows = [[operation.split() for operation in line.split(", ")] for line in PAIRS.split("\n")]
    assert len(rows) == 25
    for side, names in enumerate(columns):
        wanted = [(NAMES[row[side][0]], float(row[side][1]), float((*row[side], "0")[2])) for row in rows]
        assert list(zip(*(listed(text, name) for name in names))) == wanted
