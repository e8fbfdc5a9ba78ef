"""Tests of `bdl.metrics` under real DDP: two processes of gloo whose parts of the items differ in size."""

import pickle

import pytest
import torch
import torch.distributed as dist
from test_metric_classes import CASES, STRANGE, N, value_of

CUT = (0, 25, N)  # items of rank 0, and of rank 1


def score(rank: int, folder: str) -> None:
    """Every metric over the items of this rank, in batches of 7; then once more where rank 1 has no item at all."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    values = {}
    for name, (make, batch, _) in CASES.items():
        metric, alone = make(), make()
        for begin in range(CUT[rank], CUT[rank + 1], 7):
            metric.update(*batch(slice(begin, min(begin + 7, CUT[rank + 1]))))
        values[name] = value_of(metric)
        if rank == 0:
            alone.update(*batch(slice(None)))
        values[f"{name}, one part empty"] = value_of(alone)
    with open(f"{folder}/{rank}", "wb") as file:
        pickle.dump(values, file)
    dist.destroy_process_group()


@pytest.mark.slow
def test_every_process_has_the_score_of_all_items(tmp_path):
    """It sees a state that is not gathered (the score of a part) and one that is added where it should be joined."""
    torch.multiprocessing.spawn(score, (str(tmp_path),), nprocs=2)
    assert 0 < int(STRANGE[: CUT[1]].sum()) < CUT[1]  # both parts have items of both kinds
    ranks = [pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in (0, 1)]
    for name, (make, batch, _) in CASES.items():
        whole = make()
        whole.update(*batch(slice(None)))
        for rank in ranks:
            assert rank[name] == pytest.approx(value_of(whole), abs=1e-9), name
            assert rank[f"{name}, one part empty"] == pytest.approx(value_of(whole), abs=1e-9), name
