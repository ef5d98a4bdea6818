"""Files of a user's own: words of texts, and tables in the format that a suffix says."""

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "ran",
    "away",
    "from",
    "good",
    "bad",
    "films",
]
WORDS += ["with", "long", "slow", "plots"]


def write_table(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
