"""docs/rules.md says what the rules do."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "rules_table.py"


def test_the_table_is_current() -> None:
    spec = importlib.util.spec_from_file_location("rules_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    counts = table.known_counts()
    assert table.text(counts) == table.FILE.read_text(encoding="utf-8"), "run `make rules`"
    assert sum(counts.values()) > 8000
