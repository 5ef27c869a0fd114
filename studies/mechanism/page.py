"""Write the numbers of the trial."""

from pathlib import Path

from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import mean_std
from studies.markdown import table
from studies.mechanism.plan import DATA, MEASURED, SEEDS, SETTINGS
from studies.table import Row

TEXT = """\
# The trial of the mechanism: all numbers

`python -m studies.mechanism` trains the settings of `plan.yaml` and writes this page. {runs} of
{planned} runs are there; no question is answered before all are. Mean ± standard deviation over the
seeds; n counts them. {diverged} runs diverged; they have the accuracy of their untrained network.

{numbers}
"""


def write(rows: list[Row], out: Path) -> None:
    """Write the table of all settings."""
    lines = []
    for data in DATA:
        for setting in SETTINGS:
            runs = [row for row in rows if (row["setting"], row["data"]) == (setting, data)]
            values = [[float(row[name]) for row in runs if row[name]] for name in MEASURED]
            cells = [mean_std(column, 1) if column else "–" for column in values]
            lines.append([data, setting, str(len(runs)), *cells])
    text = TEXT.format(
        runs=len(rows),
        planned=len(SEEDS) * len(DATA) * len(SETTINGS),
        diverged=sum(row["status"] != "ok" for row in rows),
        numbers=table(["data", "setting", "n", *MEASURED], lines),
    )
    write_atomically(out, text)
