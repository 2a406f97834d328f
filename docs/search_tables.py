"""The tables of published searches in ``benchmarks/results/``, for the pages that show them."""

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
# By family the script whose printed result has its table.
FAMILIES = {
    "signatures": "search_zoo", "placing": "search_placing", "stages": "search_stages", "rewriting": "search_rewriting",
}  # fmt: skip
Means = list[tuple[str, float, float]]


def rows(text: str, first: str) -> list[dict[str, str]]:
    """The rows of the last table whose first column has this name."""
    found: list[dict[str, str]] = []
    heads: list[str] | None = None
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heads = None
        elif heads is None:
            heads = cells
            found = [] if cells[0] == first else found
        elif not set(line) <= set("|-: ") and heads[0] == first:
            found.append(dict(zip(heads, cells, strict=True)))
    return found


def means(family: str) -> Means:
    """By method its mean ratio to the best known and its mean seconds of search, the best first."""
    return means_in(family, (RESULTS / f"{FAMILIES[family]}.txt").read_text())


def means_in(family: str, text: str) -> Means:
    """The same, of what a family's script has printed."""
    if family == "rewriting":
        return _rewriting(text)
    found = []
    for row in rows(text, "method"):
        seconds = next(x for name, x in row.items() if name.startswith(("seconds", "search")))
        found.append((row["method"], float(row["mean of best"]), float(seconds)))
    return sorted(found, key=lambda x: x[1])


def _rewriting(text: str) -> Means:
    """The program as it is, and the search among equal ones: which is the better of the two is the best known."""
    table = rows(text, "model")
    ratio = [min(1.0, float(x["ratio"])) for x in table]
    plain, searched = ([float(x[name]) for x in table] for name in ("s", "s, rewritten"))
    n = len(table)
    return [("taso", 1.0, sum(searched) / n), ("as it is", sum(1 / r for r in ratio) / n, sum(plain) / n)]
