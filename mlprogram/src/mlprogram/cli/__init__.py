"""The commands of `mlprogram`.

Answers and tables go to stdout, progress and errors to stderr, so that output can be piped.
`mlprogram.terminal` turns errors into messages and exit codes. Everything heavy is imported by the
command that needs it.
"""

from collections.abc import Callable

from mlprogram import __version__
from mlprogram.cli.check import check_command
from mlprogram.cli.commands import command_line
from mlprogram.cli.diff import diff_command
from mlprogram.cli.explain import explain_command
from mlprogram.cli.faults import faults_command
from mlprogram.cli.graph import convert_command
from mlprogram.cli.place import place_command
from mlprogram.cli.programs import inspect_command, run_command, save_command
from mlprogram.cli.residency import residency_command
from mlprogram.cli.row import row_command

__all__ = ["app"]

#: Commands by the heading that --help lists them under.
COMMANDS: dict[str, dict[str, Callable]] = {
    "Convert": {"convert": convert_command, "save": save_command},
    "Run": {"run": run_command, "inspect": inspect_command, "diff": diff_command},
    "Neural Engine": {
        "check": check_command,
        "faults": faults_command,
        "place": place_command,
        "residency": residency_command,
        "row": row_command,
    },
    "When it fails": {"explain": explain_command},
}
#: Options that are gone, and what takes their place.
GONE = {
    "inspect --plan": "--kernels shows which kernel each op got",
    "faults --system": "--os names it",
    "row --check": "rows that are named are checked: `mlprogram row FILE...`",
}
app = command_line(
    "Run, compare and check Core ML's ML Programs, on any machine.",
    f"mlprogram {__version__}",
    COMMANDS,
    gone=GONE,
)
