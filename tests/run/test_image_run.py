"""A folder of images from the command line: as many outputs as classes, from memory and from files alike."""

import json

import numpy as np
from omegaconf import OmegaConf
from PIL import Image
from running import refusal, sampled, samples

SMALL = ("data=image_folder", "model=cnn", "trainer=debug", "logger=none", "chains=2", "data.batch_size=4")


def test_a_folder_of_images_is_sampled_from_memory_as_from_files(tmp_path, script):
    random = np.random.RandomState(0)
    for name in ("ant", "bee", "cow"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(4):
            image = Image.fromarray(random.randint(0, 256, (32, 32, 3), dtype=np.uint8))
            image.save(tmp_path / "images" / name / f"{i}.png")
    few = ("trainer.max_steps=4", "collect.keep.every=2", "sampler.lr=0.01", f"data.path={tmp_path / 'images'}")
    for loader in ("tensor", "files"):
        sampled(tmp_path / loader, *SMALL, *few, f"data.loader={loader}", "data.workers=0")
    memory, files = (samples(tmp_path / loader) for loader in ("tensor", "files"))
    names = [name for name in memory if name[0] == "0"]
    assert names and all(memory[name] == files[name] for name in names)
    assert OmegaConf.load(tmp_path / "files" / "config.yaml").model.num_classes == 3
    saved = json.loads((tmp_path / "files" / "preprocessing.json").read_text())
    assert saved["labels"] == ["ant", "bee", "cow"] and len(saved["mean"]) == 3
    error = refusal(script("predict", f"run={tmp_path / 'files'}", "input=a.csv", f"output={tmp_path / 'p.csv'}"))
    assert "is no run on a table, but on images" in error
    code, said, _ = script("evaluate", f"runs=[{tmp_path / 'tensor'}]", "shifts=[contrast,jpeg]", "severity=5")
    assert code == 0 and "shift/contrast: accuracy" in said
    scores = json.loads((tmp_path / "tensor" / "evaluation" / "metrics.json").read_text())
    names = {name for name in scores if name.startswith("shift/")}
    assert {f"shift/{shift}/{score}" for shift in ("contrast", "jpeg") for score in ("nll", "auroc", "ece")} < names
    assert scores["shift/contrast/nll"] != scores["test/bma/nll"]
    error = refusal(script("evaluate", f"runs=[{tmp_path / 'files'}]", "shifts=[fog]"))
    assert "shifts need images in memory" in error
    assert "frost is no shift" in refusal(script("evaluate", f"runs=[{tmp_path / 'tensor'}]", "shifts=[frost]"))
