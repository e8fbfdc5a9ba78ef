"""Tests of `bdl.contrib.shift`: corruptions whose effect on an image is known, and their strength by severity."""

import pytest
import torch

from bdl.contrib.shift import SHIFTS, plasma
from bdl.data import Normalise, Shift, TensorSlices

GREY = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
at = torch.arange(32.0)
WAVES = (
    128 + 60 * torch.sin(0.5 * at)[:, None] + 60 * torch.cos(0.9 * at) * torch.tensor([0.3, 0.6, 1.0])[:, None, None]
)
IMAGES = WAVES.to(torch.uint8).expand(40, 3, 32, 32).contiguous()


def distance(name: str, severity: int, x=IMAGES) -> float:
    return float((Shift(name, severity)(x).float() - x.float()).square().mean())


@pytest.mark.parametrize("name", SHIFTS)
def test_images_stay_images_and_grow_worse_with_the_severity(name):
    """The saturation falls at severities 1 and 2 and grows at 3 to 5. Coarse pixels may by chance fit the waves."""
    shifted = Shift(name, 5)(IMAGES)
    assert shifted.shape == IMAGES.shape and shifted.dtype == torch.uint8
    assert torch.equal(shifted, Shift(name, 5)(IMAGES))  # the same random numbers
    levels = [distance(name, severity) for severity in range(1, 6)]
    groups = {"saturate": [levels[:2], levels[2:]], "pixelate": [levels[::4]]}.get(name, [levels])
    for group in groups:
        assert group[0] > 0 and group == sorted(group)


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name, variance", [
    ("gaussian_noise", lambda c: 255**2 * c**2),
    ("shot_noise", lambda c: 255**2 * (128 / 255) / c),
    ("speckle_noise", lambda c: 128**2 * c**2),
    ("impulse_noise", lambda c: c * (128**2 + 127**2) / 2),
])  # fmt: skip
def test_the_variance_of_noise_on_grey_is_that_of_its_constant(name, variance, severity):
    """122,880 values: a standard error of 0.4 % for normal noise, and of 3 % for impulses. Truncation adds 1/3."""
    expected = variance(SHIFTS[name][1][severity - 1])
    error = 0.03 if name == "impulse_noise" else 0.004
    assert distance(name, severity, GREY) == pytest.approx(expected + 1 / 3, rel=4 * error, abs=0.4)


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "pixelate", "contrast"])
def test_blurs_leave_an_even_image_alone(name):
    assert (Shift(name, 5)(GREY).int() - 128).abs().max() <= 1


def test_a_motion_is_one_sided_and_a_blur_is_not():
    point = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    point[:, :, 16, 16] = 255
    moved, blurred = (Shift(name, 5)(point).float().mean((0, 1)) for name in ("motion_blur", "gaussian_blur"))
    assert (
        moved[:, 17:].sum() == 0 and moved[:, :16].sum() > 50
    )  # at -45 to 45 degrees: each pixel reads what lies right
    torch.testing.assert_close(blurred, blurred.flip(0).roll(1, 0))
    torch.testing.assert_close(blurred, blurred.flip(1).roll(1, 1))


def test_colours_change_as_hsv_says():
    colour = torch.tensor([200, 100, 50], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 4, 4)
    brighter = Shift("brightness", 4)(colour)[0, :, 0, 0].tolist()
    assert brighter == [251, 125, 62]  # 200 + 0.2 · 255 = 251; the others by the factor 251 / 200
    fuller = Shift("saturate", 4)(colour)[0, :, 0, 0].tolist()
    assert fuller == [200, 66, 0]  # s = 0.75 becomes 1: (200 - c) · 4/3 below 200
    grey = Shift("saturate", 5)(GREY[:1])[0, :, 0, 0].tolist()
    assert grey == [128, 102, 102]  # s = 0 becomes 0.2, of hue 0


@pytest.mark.parametrize("decay", [3.0, 1.75])
def test_jumps_of_clouds_decay_from_level_to_level(decay):
    """A jump is uniform between ± wibble², so its variance falls by decay⁴; standard error over 50 clouds: 2 %."""
    clouds = plasma(50, 32, decay, torch.Generator().manual_seed(0))
    assert clouds.amin((1, 2)).eq(0).all() and clouds.amax((1, 2)).eq(1).all()
    variances = []
    for step in (2, 4):  # the centres of squares against the mean of their corners, on a torus
        corners = clouds[:, ::step, ::step]
        across = corners + corners.roll(-1, 2)
        jumps = clouds[:, step // 2 :: step, step // 2 :: step] - (across + across.roll(-1, 1)) / 4
        variances.append(jumps.square().mean((1, 2)).log())
    ratio = (variances[0] - variances[1]).mean().exp()
    assert float(ratio) == pytest.approx(decay**-4, rel=0.08)


def test_a_loader_is_shifted_before_it_is_normalised():
    normalise = Normalise((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    loader = TensorSlices(IMAGES, torch.arange(40), transform=normalise)
    ((x, y),) = Shift("jpeg", 2).of(loader)
    assert torch.equal(x, normalise(Shift("jpeg", 2)(IMAGES))) and torch.equal(y, torch.arange(40))
