"""Tests of `bdl.contrib.influence.command`: the table and the page of a run, and what rows look like."""

import pandas as pd
import pytest
import torch
from running import done, refusal

import bdl
from bdl.contrib.influence.command import looks, strongest
from bdl.contrib.influence.covariance import InfluenceBlock
from bdl.models import MLP


def test_a_run_is_explained(run, script, tmp_path):
    """The table has the largest and the smallest influences of all pairs; the page names the rows."""
    assert "influence.html" in done(script("influence", str(run), "rows=[3,7]", "top=2", f"out={tmp_path}"))
    table, data = pd.read_csv(tmp_path / "influence.csv"), bdl.data.LandsatDataModule()
    posterior, (x, y) = bdl.Posterior.opened(run, MLP((36, 6))), data.tensors("test")
    whole = posterior.influence(data.slices("train"), bdl.data.TensorSlices(x[[3, 7]], y[[3, 7]]))
    for place, (row, lines) in enumerate(table.groupby("row", sort=False)):
        assert row == (3, 7)[place] and len(lines) == 4
        order = whole.values[place].argsort(descending=True)
        assert lines.train_row.tolist() == torch.cat([order[:2], order[-2:]]).tolist()
        assert lines.influence.tolist() == pytest.approx(
            whole.values[place][lines.train_row.tolist()].tolist(), rel=1e-4
        )
        assert lines.std_error.tolist() == pytest.approx(
            whole.std_error[place][lines.train_row.tolist()].tolist(), rel=1e-4
        )
        assert [value > 0 for value in lines.influence] == (lines.effect == "helps").tolist()
    page = (tmp_path / "influence.html").read_text()
    assert page.count("<section>") == 2 and "test row 7" in page and f"<th>{table.train_row[0]}</th>" in page
    assert 'src="http' not in page and "±" in page


@pytest.mark.parametrize(
    "override, words",
    [("rows=[2000]", "test has the rows 0 to 1999, and no 2000"), ("top=0", "top must be"), ("explain=all", "explain")],
)
def test_wrong_settings_are_one_line(run, script, override, words):
    assert words in refusal(script("influence", str(run), override))


def test_the_strongest_of_blocks_are_those_of_the_whole():
    values = torch.randn(5, 23, dtype=torch.float64)
    cuts = [slice(0, 9), slice(9, 10), slice(10, 23)]
    blocks = [InfluenceBlock(t, c, values[t, c], -values[t, c]) for t in (slice(0, 3), slice(3, 5)) for c in cuts]
    found, order = strongest(blocks, 4), values.argsort(dim=1, descending=True)
    assert torch.equal(found[0].long(), torch.cat([order[:, :4], order[:, -4:]], 1))
    assert torch.equal(found[1], values.gather(1, found[0].long())) and torch.equal(found[2], -found[1])
    assert torch.equal(strongest(blocks, 20)[0].long(), order)  # fewer than two times 20: each once


def test_images_are_pictures_and_rows_of_a_file_are_as_written(tmp_path):
    x, y = torch.rand(6, 3, 4, 5), torch.tensor([0, 1, 1, 0, 1, 0])
    images = bdl.data.TensorDataModule({"train": (x, y), "test": (x, y)}, labels=["cat", "dog"])
    look = looks(images, "train", {2: (x[2:3], y[2:3])})[2]
    assert look["label"] == "dog" and look["picture"].startswith("data:image/png;base64,")
    rows = pd.DataFrame(
        {"colour": ["red", "blue"] * 10, "size": [k / 7 for k in range(20)], "note": "=1+1", "y": [0.5, 0.25] * 10}
    )
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = bdl.data.read_table(tmp_path / "t.csv", "y", drop=["note"], task="regression")
    inputs, targets = data.tensors("test")
    look = looks(data, "test", {1: (inputs[1:2], targets[1:2])})[1]
    line = int(look["label"].split()[1]) - 2
    assert f"colour {rows.colour[line]}, size {rows['size'][line]:.3f}"[:-1] in look["row"]
    (_, shift, scale), *_ = data.target_units
    assert shift + scale * float(targets[1]) == pytest.approx(rows.y[line])
