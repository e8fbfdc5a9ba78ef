"""Memory that is freed stays with the process, and the garbage of a run stays small."""

import gc
import sys

import pytest
from forked import Forked

from bdl.run.machine import small_garbage

SCRIPT = """
import resource
import torch
from bdl.run.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        kept = [torch.ones(2_000_000) for _ in range(5)]  # 8 MB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

rounds = range(5)  # the kernel may take pages back in any one of them
print(max(faults() for _ in rounds), keep_freed_memory(), min(faults() for _ in rounds))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_used_again_without_page_faults(tmp_path):
    """50 blocks of 2,000 pages: thousands of page faults with the C library's settings, hardly any with ours."""
    (tmp_path / "script.py").write_text(SCRIPT)
    out, err = Forked([str(tmp_path / "script.py")], tmp_path).communicate(timeout=200)
    assert err == ""
    before, kept, after = out.split()
    assert kept == "True" and int(before) > 200 and int(after) < max(100, int(before) / 10)


def test_collector_leaves_old_objects_alone_while_a_run_samples():
    with pytest.raises(KeyError), small_garbage():
        assert gc.get_freeze_count() > 10_000
        raise KeyError
    assert gc.get_freeze_count() == 0
