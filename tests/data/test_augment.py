"""Augmentation against torchvision, its laws, and its dependence on seed, stack, epoch, chain and item alone."""

import copy
import itertools

import pytest
import torch
import torchvision.transforms.functional as F
from torch import Tensor
from torchvision.transforms import RandomErasing

from bdl.data import Augment, Normalise, TensorBatches, TensorSlices
from bdl.data.augment import AREA, GREY, RATIO
from bdl.seeding import generator

MANY = 20_000  # decisions whose law is tested
EVERYTHING = Augment(crop=4, flip=True, erase=0.5, cutout=9)
NORMALISE = Normalise((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))


def images(n: int = 40, height: int = 32, width: int = 32) -> Tensor:
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator("cpu", "images"))


def decisions(augment: Augment, n: int = MANY, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    return augment.draw(n, (3, height, width), generator("cpu", seed)).long()


def one_by_one(augment: Augment, x: Tensor, rows: Tensor) -> Tensor:
    """The same changes by torchvision, one image at a time."""
    grey, out = torch.tensor(GREY, dtype=torch.uint8)[:, None, None], []
    for image, (top, left, flip, *boxes) in zip(x, rows.tolist(), strict=True):
        height, width = image.shape[1:]
        image = F.crop(F.pad(image, [augment.crop] * 4), top, left, height, width)
        image = F.hflip(image) if flip else image
        for up, down, first, last in (boxes[:4], boxes[4:]):
            up, first, down, last = max(up, 0), max(first, 0), max(down, 0), max(last, 0)
            image = F.erase(image, up, first, down - up, last - first, grey)
        out.append(image)
    return torch.stack(out)


def close(draws: Tensor, expected: float, sd: float) -> None:
    """The mean of the draws is within five standard errors of the expected one."""
    assert abs(draws.double().mean().item() - expected) < 5 * sd / len(draws) ** 0.5


@pytest.mark.parametrize("size", [(32, 32), (20, 28)])
@pytest.mark.parametrize(
    "augment",
    [Augment(), Augment(crop=0), Augment(flip=False), Augment(erase=1.0), Augment(cutout=8), EVERYTHING],
    ids=repr,
)
def test_a_batch_is_what_torchvision_makes_of_each_image(augment, size):
    x, rows = images(40, *size), decisions(augment, 40, *size)
    changed = augment(x, rows)
    assert changed.dtype == torch.uint8 and torch.equal(changed, one_by_one(augment, x, rows))


def test_without_a_change_the_images_are_themselves():
    nothing, x = Augment(crop=0, flip=False), images()
    assert torch.equal(nothing(x, decisions(nothing, len(x))), x)


def test_the_images_given_are_left_alone():
    x, before = images(), images()
    EVERYTHING(x, decisions(EVERYTHING, len(x)))
    assert torch.equal(x, before)


def test_every_shift_is_equally_likely_and_half_are_flipped():
    top, left, flip = decisions(Augment()).T[:3]
    counts = torch.bincount(9 * top + left, minlength=81).double()
    expected = MANY / 81
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert len(counts) == 81 and abs(statistic - 80) < 5 * (2 * 80) ** 0.5  # chi-squared, 80 degrees of freedom
    close(flip, 0.5, 0.5)
    close(flip * top, 0.5 * 4, 3.0)  # independent of each other


def test_as_many_are_erased_as_asked():
    for probability in (0.0, 0.3, 1.0):
        up, down = decisions(Augment(erase=probability)).T[3:5]
        close((down > up).double(), probability, (probability * (1 - probability)) ** 0.5 + 1e-9)


def test_rectangles_have_the_law_of_torchvisions():
    """Means and second moments agree with torchvision's. We shorten the 0.6 % that torchvision draws again."""
    torch.manual_seed(0)
    image = torch.zeros(3, 32, 32)
    theirs = torch.tensor([RandomErasing.get_params(image, AREA, RATIO)[:4] for _ in range(4000)]).double()
    up, down, first, last = decisions(Augment(erase=1.0)).T[3:7].double()
    ours = torch.stack([up, first, down - up, last - first], 1)
    error = (theirs.var(0) / len(theirs) + ours.var(0) / len(ours)).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error + 0.006 * 2).all()
    for i, j in itertools.product(range(4), repeat=2):
        a, b = theirs[:, i] * theirs[:, j], ours[:, i] * ours[:, j]
        error = (a.var() / len(a) + b.var() / len(b)).sqrt()
        assert abs(a.mean() - b.mean()) < 5 * error + 0.006 * 64
    assert (
        up.min() == first.min() == 0 and down.max() == last.max() == 32
    )  # a rectangle can reach every part of the image


def test_a_cutout_is_a_square_around_any_pixel():
    up, down, first, last = decisions(Augment(cutout=8)).T[7:]
    assert (down - up == 8).all() and (last - first == 8).all()
    assert up.unique().tolist() == first.unique().tolist() == list(range(-4, 28))
    x = images(400)
    changed = (Augment(0, False, cutout=8)(x, decisions(Augment(0, False, cutout=8), 400)) != x).any(1)
    assert changed.flatten(1).sum(1).max() <= 64 and changed.any(0).all()


def test_every_image_has_different_decisions():
    assert len(decisions(EVERYTHING, 200).unique(dim=0)) > 190


def test_channels_last_is_a_layout_and_nothing_else():
    inputs = Normalise(NORMALISE.mean, NORMALISE.std, channels_last=True)(images())
    assert torch.equal(inputs, NORMALISE(images())) and inputs.is_contiguous(memory_format=torch.channels_last)


def test_normalisation_is_torchvisions():
    x = images()
    expected = F.normalize(x / 255, list(NORMALISE.mean), list(NORMALISE.std))
    inputs = NORMALISE(x)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(torch.cat([NORMALISE(part) for part in x.split(7)]), inputs)


def loader(batch_size: int = 6, augment: Augment | None = EVERYTHING, **arguments) -> TensorBatches:
    x = images(20)
    return TensorBatches(x, torch.arange(20), batch_size, augment=augment, transform=NORMALISE, **arguments)


def take(loader: TensorBatches, batches: int) -> list[tuple[Tensor, Tensor]]:
    stream = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    return list(itertools.islice(stream, batches))


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def test_a_loader_augments_bytes_and_then_makes_inputs_of_them():
    x, y = next(iter(loader(chains=2)))
    assert x.shape == (2, 6, 3, 32, 32) and x.dtype == torch.float32 and y.shape == (2, 6)
    plain, same_y = next(iter(loader(chains=2, augment=None)))
    assert torch.equal(y, same_y)  # augmentation leaves the order alone
    assert torch.equal(plain, NORMALISE(images(20)[y.flatten()]).view_as(plain))
    assert not torch.equal(x, plain)


def changes(batches: int, **arguments) -> list[bytes]:
    """The versions of one image, which is all the data, by batch and chain."""
    x = images(1).expand(20, -1, -1, -1)
    each = TensorBatches(x, torch.zeros(20), 5, augment=EVERYTHING, **arguments)
    return [one.numpy().tobytes() for x, _ in take(each, batches) for one in (x if "chains" in arguments else x[None])]


def test_augmentation_is_a_function_of_seed_and_stack():
    torch.manual_seed(0)
    first = changes(6, seed=1, stack=2)
    torch.manual_seed(1)
    assert first == changes(6, seed=1, stack=2)
    for elsewhere in (changes(6, seed=2, stack=2), changes(6, seed=1, stack=1), changes(6, seed=2, stack=1)):
        assert not set(first) & set(elsewhere)


def test_change_of_image_is_a_function_of_its_number_and_epoch():
    """Order and batch size do not matter: a chain draws one row of decisions per image and epoch."""
    each, seen = loader(7, chains=2, seed=3, stack=1), set()
    for epoch in range(3):
        drawn = [EVERYTHING.draw(20, (3, 32, 32), generator("cpu", "augment", 3, 1, epoch, c)) for c in range(2)]
        seen |= {rows.numpy().tobytes() for rows in drawn}
        for x, y in each:
            for c in range(2):
                assert torch.equal(x[c], NORMALISE(EVERYTHING(images(20)[y[c]], drawn[c][y[c]])))
    assert len(seen) == 6


def test_every_batch_epoch_and_chain_is_changed_differently():
    versions = changes(12, chains=3)  # three epochs
    assert len(versions) == len(set(versions)) == 36


def test_batches_of_a_chain_do_not_depend_on_number_of_chains():
    two, four = (take(loader(chains=c), 4) for c in (2, 4))
    assert same(two, [(x[:2], y[:2]) for x, y in four])


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    take(loader(chains=2), 5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("done", range(0, 8))
def test_a_resumed_loader_yields_the_same_bits(done):
    whole = take(loader(chains=2), 9)
    first, second = loader(chains=2), loader(chains=2)
    assert same(take(first, done), whole[:done])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert same(take(second, 9 - done), whole[done:])


def test_slices_of_a_loader_are_not_augmented():
    each = loader()
    take(each, 2)
    x, y = next(iter(each.slices()))
    assert torch.equal(x, NORMALISE(images(20))) and torch.equal(y, torch.arange(20))
    assert each.state_dict() == {"epoch": 0, "index": 2}


def test_evaluation_batches_of_large_items_are_smaller():
    y = torch.zeros(5000)
    assert len(TensorSlices(torch.zeros(5000, 36), y)) == 2
    assert TensorSlices(torch.zeros(5000, 3, 32, 32, dtype=torch.uint8), y).batch_size == 85
