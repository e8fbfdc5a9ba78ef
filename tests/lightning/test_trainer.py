"""Tests of `bdl.lightning.trainer`: what every Trainer of bdl has, and how one that cannot be made is refused."""

import lightning as L
import pytest

from bdl.errors import ConfigError
from bdl.lightning.trainer import assemble


def test_callbacks_keep_their_order_and_the_folder_is_theirs(tmp_path):
    first, second = L.Callback(), L.Callback()
    trainer = assemble(iter([first, second]), tmp_path, accelerator="cpu", enable_progress_bar=False)
    assert [each for each in trainer.callbacks if type(each) is L.Callback] == [first, second]
    assert trainer.default_root_dir == str(tmp_path) and trainer.loggers == [] and trainer.num_sanity_val_steps == 0


def test_what_lightning_refuses_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="^no Trainer: .*tpux") as refused:
        assemble([], tmp_path, refusal="no Trainer", accelerator="tpux")
    assert "\n" not in str(refused.value)
