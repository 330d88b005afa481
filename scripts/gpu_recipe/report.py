"""Rows of results as text, and what of them a run without a GPU keeps."""

from collections.abc import Iterable, Mapping

from gpu_recipe.cases import Row

# All that an interpreted run can say; its times are not those of a GPU.
WITHOUT_TIMES = (
    "section",
    "case",
    "family",
    "rows",
    "mode",
    "active",
    "policy",
    "ok",
    "equal",
    "error",
    "repeatable",
    "experts",
    "topk_experts",
    "weight_bytes",
    "failed",
    "skipped",
)
_HIDDEN = ("section", "case", "family", "rows", "mode", "policy", "active")


def without_times(row: Row) -> Row:
    """A row of an interpreted run: marked as such, no numbers of time or speed."""
    return {**{key: row[key] for key in WITHOUT_TIMES if key in row}, "gpu": False}


def failures(rows: Iterable[Row]) -> list[Row]:
    """Rows of checks that failed and of cases that broke off."""
    return [row for row in rows if row.get("ok") is False]


def with_shares(rows: Iterable[Row]) -> list[Row]:
    """Rows with the share of the run's own copy bandwidth beside every bandwidth."""
    rows = list(rows)
    copy = next((row["copy_gb_s"] for row in rows if "copy_gb_s" in row), None)
    if copy is None:
        return rows
    return [
        {**row, "share_of_copy": row["mosaic_gb_s"] / copy} if "mosaic_gb_s" in row else row
        for row in rows
    ]


def table(rows: Iterable[Row]) -> str:
    """A line for each row."""
    return "\n".join(
        f"{row.get('section', ''):<8} {row['case']:<38} {_values(row)}" for row in rows
    )


def _values(row: Mapping[str, object]) -> str:
    return "  ".join(f"{key} {_text(row[key])}" for key in row if key not in _HIDDEN)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
