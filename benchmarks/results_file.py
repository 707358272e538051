"""Rows of a benchmark that are on disk as soon as they are measured."""

import json
import os
import subprocess
import sys


class ResultsFile:
    """`NAME.json` in a folder; a second run goes on where one stopped.

    Args:
        folder, name: where; the folder is made.
        keys: names of the fields that tell rows apart.
    """

    def __init__(self, folder, name, keys):
        os.makedirs(folder, exist_ok=True)
        self.base, self.keys = os.path.join(folder, name), tuple(keys)
        self.rows = []
        if os.path.exists(f"{self.base}.json"):
            with open(f"{self.base}.json") as f:
                self.rows = json.load(f)

    def has(self, *key):
        """Whether a row with these values of `keys` was measured."""
        return key in {tuple(r[k] for k in self.keys) for r in self.rows}

    def add(self, key, ledger, **row):
        """Prints and writes a row, with what its ledger says (if any)."""
        self.rows.append(
            {
                **dict(zip(self.keys, key)),
                **row,
                "proven": str(ledger.epsilon()) if ledger else None,
                "claimed": ledger.claimed_epsilon() if ledger else None,
                "delta": ledger.budget.delta if ledger else None,
                "neighbours": str(ledger.neighbours) if ledger else None,
            }
        )
        print(json.dumps(self.rows[-1]), flush=True)
        with open(f"{self.base}.json", "w") as f:
            json.dump(self.rows, f, indent=1)

    def measure(self, script, key, *flags):
        """Adds the row that a process of its own prints after `ROW `."""
        child = subprocess.run(
            # Commas part the values of the flag.
            [
                sys.executable,
                script,
                "--row=" + ",".join(str(k).replace(",", ";") for k in key),
                *flags,
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        (line,) = (v for v in child.stdout.splitlines() if v[:4] == "ROW ")
        return json.loads(line[4:])

    def finish(self, text):
        """Prints and writes the table."""
        with open(f"{self.base}_table.md", "w") as f:
            f.write(text)
        print(text)

    def finish_table(self, head, cells, rows=None):
        """The same of a table.

        Args:
            head: names of the columns, by ` | `.
            cells: a function from a row to its cells.
            rows: those that are shown; all by default.
        """
        lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
        for row in self.rows if rows is None else rows:
            lines.append(f"| {' | '.join(map(str, cells(row)))} |")
        self.finish("\n".join(lines) + "\n")
