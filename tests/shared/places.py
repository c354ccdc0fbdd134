"""Where tests find what they read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "records"
DATA = ROOT / "tests" / "data"
