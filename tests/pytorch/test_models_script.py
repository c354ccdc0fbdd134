"""scripts/models.py on the CPU, with models of two layers and the host's clock."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.places import ROOT

pytestmark = pytest.mark.slow


class Clock:
    """The host's clock in place of CUDA's events."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def stop(self) -> None:
        self._end = time.perf_counter()

    def seconds(self) -> float:
        return self._end - self._begin


@pytest.fixture
def models(torch: Any, multiplied: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the script as a module. The models are so small that threads would wait for each other."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    spec = importlib.util.spec_from_file_location("models", ROOT / "scripts" / "models.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "models", script)
    monkeypatch.syspath_prepend(ROOT / "scripts")
    spec.loader.exec_module(script)

    def config(name: str) -> Any:
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        if name == "gpt2":
            off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
            return transformers.GPT2Config(vocab_size=211, n_layer=2, n_embd=32, n_head=2, **off)
        if name == "llama":
            return transformers.LlamaConfig(vocab_size=211, num_key_value_heads=1, use_cache=False, **small)
        return transformers.ViTConfig(image_size=32, num_labels=1000, **small)

    works, turns, losses = (sys.modules[f"networks.{name}"] for name in ("works", "turns", "losses"))
    sizes = {name: works.Size((2, 16), (1, 16), (2, 16)) for name in ("gpt2", "llama")}
    monkeypatch.setattr(works, "SIZES", {**sizes, "vit": works.Size((2, 1), (2, 1))})
    monkeypatch.setattr(works, "DEVICE", "cpu")
    monkeypatch.setattr(turns, "Clock", Clock)
    monkeypatch.setattr(turns, "OPTIONS", {})
    monkeypatch.setattr(turns, "LEG", 0.001)
    monkeypatch.setattr(losses, "STEPS", 5)
    monkeypatch.setattr(turns, "MOST", 3)
    monkeypatch.setattr(works, "config", config)
    monkeypatch.setattr(turns, "synchronize", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield script
    torch.set_num_threads(threads)


def run(script: Any, monkeypatch: pytest.MonkeyPatch, file: Path, *asked: str) -> list[dict[str, Any]]:
    """Return the rows of the record that a run wrote."""
    monkeypatch.setattr(sys, "argv", ["models.py", str(file), *asked])
    script.main()
    return json.loads(file.read_text())["rows"]


def test_every_part_ends_in_a_row(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(models, monkeypatch, tmp_path / "r.json", "--modes", "eager", "--types", "fp32", "bf16")
    timed = [row for row in rows if "ratio" in row]
    assert len(rows) == 2 + 2 * (3 + 3 + 2) and len(timed) == len(rows) - 2
    assert all(row["by_harness"] == 1 and row["calls"] and row["fours"] >= 3 for row in timed)
    for row in rows[:2]:
        assert row["steps"] == 5 and row["within_noise"]
        assert row["rms_from_stock"]["again"] == 0
    assert rows[1]["rms_from_stock"]["last_bit"] > 0
    noise = sys.modules["networks.losses"].NOISE[:3]
    assert all(row["noise"] >= max(row["rms_from_stock"][name] for name in noise) for row in rows[:2])
    far = [row["rms_from_float64"] for row in rows[:2]]
    assert far[0]["stock"] < 1e-5 < far[1]["stock"]  # the control: bf16 is farther than float32
    assert far[0]["harness"] < 1e-5 and "float64" not in far[0]
    assert max(map(len, capsys.readouterr().out.splitlines()[-len(rows) :])) <= 80


def test_wrong_products_are_beyond_the_noise(
    models: Any, multiplied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: products that are a thousandth too large."""
    from harness.torch import products

    def wrong(a: Any, b: Any, out: Any, alpha: float, *options: Any) -> None:
        multiplied(a, b, out, alpha * 1.001, *options)

    monkeypatch.setattr(products, "product", wrong)
    (row,) = run(models, monkeypatch, tmp_path / "r.json", "--works", "losses", "--types", "fp32")
    assert not row["within_noise"]


def test_errors_and_lack_of_time_are_recorded(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = tmp_path / "r.json", ("--models", "llama", "--works", "prefill", "--types", "fp32")
    (row,) = run(models, monkeypatch, file, *asked, "--modes", "eager", "--seconds", "0")
    assert row["skipped"]
    with pytest.raises(SystemExit, match="ended with an error"):
        run(models, monkeypatch, file, *asked, "--modes", "graph")
    assert "error" in json.loads(file.read_text())["rows"][0]  # there is no GPU to capture on
