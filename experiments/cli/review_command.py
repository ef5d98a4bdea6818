"""``probattn review``: a page on which a person goes through the answers of a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from probattn.experiments.cli.terminal import Data, TrustCode, say

OUT = "The page; default RUN/review.html."


def review(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluated run.")],
    out: Annotated[Path | None, typer.Option(dir_okay=False, metavar="FILE.html", help=OUT)] = None,
    data: Data = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a page to review the test examples, the least certain first, and to note their labels.

    It is one HTML file, which needs no server and no network.
    """
    from probattn.experiments.reporting import review as pages
    from probattn.inference.io.files import write_bytes
    from probattn.inference.io.outputs import check_outputs, write_outputs

    # The comment with which pages begin, by which earlier ones are known.
    place: dict[str, Any] = {"mark": "<!-- probattn review -->", "inputs": [run]}
    if out is not None:
        check_outputs([out], **place)
    page = pages.of_run(run, root=data, trust_code=trust_code)
    if out is None:
        out = run / pages.FILE
        write_bytes(out, page.encode())
    else:
        write_outputs({out: page}, **place)
    say(f"open in a browser: {out}")
