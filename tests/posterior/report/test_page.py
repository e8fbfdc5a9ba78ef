"""The report page: whole, self-contained, escaped, and bearable when little is known."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from bdl.errors import StoreError
from bdl.posterior.diagnostics import summary
from bdl.posterior.evaluation import Curve
from bdl.posterior.report.figures import EnergyHistogram
from bdl.posterior.report.page import ROWS, ReportData, page, write_report

ATTACK = "<script>alert(1)</script>\"'&"


VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Checks that tags are balanced and collects what a browser would load."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def data() -> ReportData:
    rng, steps, chains = np.random.default_rng(0), np.arange(0, 3000, 3), 3
    probs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    metrics = {
        f"{split}/{row}/{score}": value
        for split in ("test", "train")
        for row in ROWS
        for score, value in {"accuracy": 0.91, "nll": 0.25, "ece": 0.02, "brier": 0.13}.items()
    }
    chain = {"samples": 60, "chains": 3, "temperature": 1.0, "t_eff": 1.2, "noise_ratio": 0.2, "weight_ess": 31.0}
    return ReportData(
        title="landsat",
        facts={"data": "landsat", "N": "4,435"},
        explain="law meant: exp(-U/T)\nT = 1 < 2",
        metrics=metrics | chain | {"rhat/max": 1.02, "ess/min": 140.0, "kinetic_temperature": math.nan},
        trace={
            "step": steps,
            "energy": rng.normal(size=(len(steps), chains)),
            "lr": np.full(len(steps), 0.1),
            "temperature": np.where(steps < 300, 0.0, 1.0),
            "t_eff": np.full((len(steps), chains), np.nan),
            "multiplier": 1 + rng.random((len(steps), chains)),
        },
        kept_steps=np.arange(1000, 3000, 100),
        histogram=EnergyHistogram(
            np.linspace(-4, 4, 21), np.linspace(-5, 0, 20), rng.normal(size=500), 1.0, 1.0, "full", True
        ),
        reliability={"one sample": (probs, probs.argmax(1)), "average of all chains": (probs, probs.argmin(1))},
        curve=Curve([3, 6, 9], [0.8, 0.85, 0.86], [0.5, 0.4, 0.39], [0.8, 0.82, 0.83], [0.5, 0.45, 0.44]),
        convergence=summary({"energy": rng.normal(size=(3, 20)), "constant": np.ones((3, 20))}),
    )


@pytest.fixture(scope="module")
def text(data) -> str:
    return page(data)


def test_one_file_that_loads_nothing(tmp_path, data):
    write_report(tmp_path / "report.html", data)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    written = (tmp_path / "report.html").read_text()
    reader = Reader(written)
    assert len(reader.links) == 5 and all(link.startswith("data:image/svg+xml;base64,") for link in reader.links)
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)
    assert not re.search(r"https?://|@import|url\(", written)


def test_pictures_are_whole_svgs_that_load_nothing(text):
    import base64
    from xml.etree import ElementTree

    for link in Reader(text).links:
        tree = ElementTree.fromstring(base64.b64decode(link.split(",")[1]))
        assert tree.tag.endswith("svg")
        links = [v for e in tree.iter() for k, v in e.attrib.items() if k.endswith("href")]
        assert all(v.startswith(("#", "data:image/png;base64,")) for v in links)


def test_names_every_row_and_shows_every_kind_of_number(text):
    for name in (*ROWS.values(), "error %", "NLL (nats)", "ECE", "Brier", "9.00", "0.2500", "4,435", "noise_ratio"):
        assert name.replace("'", "&#x27;") in text or name in text
    assert "Nothing speaks against these samples" in text


def test_weighted_row_is_left_out_where_there_are_no_weights(data):
    plain = {k: v for k, v in data.metrics.items() if "weight" not in k}
    assert ROWS["bma_weighted"] not in page(ReportData("t", metrics=plain))
    assert ROWS["bma"].replace("'", "&#x27;") in page(ReportData("t", metrics=plain)).replace("'", "&#x27;")


def test_the_best_number_of_a_column_is_bold():
    nll = {"one_sample": 0.3, "chain_bma": 0.2, "bma": math.nan}
    text = page(ReportData("t", metrics={f"test/{row}/nll": v for row, v in nll.items()}))
    assert re.findall(r'class="number test best">([^<]+)<', text) == ["0.2000"]


def test_a_worse_number_changes_the_headline(data):
    apart = page(ReportData("t", metrics={**data.metrics, "rhat/max": 1.6}))
    assert "Do not trust these samples yet" in apart and "chains disagree" in apart
    assert "Look at the open points" in page(ReportData("t", metrics=data.metrics, warnings=["clipped"]))


def test_text_of_users_is_escaped(data):
    hostile = ReportData(
        ATTACK,
        {ATTACK: ATTACK},
        ATTACK,
        {ATTACK: 1.0},
        convergence=summary({ATTACK: np.ones((2, 5))}),
        warnings=[ATTACK],
    )
    text = page(hostile)
    assert "<script" not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") == 8
    Reader(text)


def test_everything_optional_absent():
    reader = Reader(page(ReportData("empty")))
    assert not reader.links and "h1" in reader.tags


def test_numbers_that_are_nan_or_null_are_dashes():
    text = page(ReportData("t", metrics={"test/bma/nll": math.nan, "test/bma/ece": 0.1, "rhat/max": None}))  # type: ignore
    assert "–" in text and "nan" not in text.lower().replace("nll (nats)", "")


@pytest.mark.parametrize(
    "change",
    [
        {"histogram": EnergyHistogram(np.full(11, np.nan), np.zeros(10), np.ones(3), 1.0, 1.0)},
        {"histogram": EnergyHistogram(np.linspace(0, 1, 11), np.zeros(10), np.ones(0), 2.0, 1.0, cumulative=False)},
        {"trace": {"step": np.arange(5), "energy": np.full(5, np.nan)}},
        {"trace": {"step": np.arange(5), "energy": np.ones(5), "kinetic_temperature": np.ones((5, 2))}},
        {"trace": {"step": np.arange(0), "energy": np.ones((0, 2))}},
        {"trace": {"step": torch.arange(9), "energy": torch.ones(9, 40)}},
        {"curve": Curve([1], [0.5], [0.7])},
        {"reliability": {"few": (torch.tensor([[0.9, 0.1]]), torch.tensor([1]))}},
    ],
)
def test_states_in_which_a_run_may_be_caught(change, recwarn):
    Reader(page(replace(ReportData("t"), **change)))
    assert not recwarn.list


def test_the_same_data_give_the_same_bytes(data, text):
    assert page(data) == text


def test_a_disk_that_refuses_is_a_clear_error_and_leaves_the_old_page(tmp_path, data):
    path = tmp_path / "file" / "report.html"
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        write_report(path, ReportData("t"))
