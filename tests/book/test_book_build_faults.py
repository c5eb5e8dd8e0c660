"""Builds of small books in which something is wrong: a page, what is kept, or how a build ended."""

import os
from pathlib import Path
import re
import signal
import subprocess
import sys

from _patience import HANGING, until
from _small_books import HEADER, add_page, build, header_with, shown, small_book
from filelock import FileLock
import pytest


def test_a_page_that_cannot_be_read_or_run_is_named_and_the_others_are_built(tmp_path):
    small_book(tmp_path, "print('whole')")
    latin = add_page(tmp_path, "latin", "'caf\u00e9'")
    latin.write_bytes(latin.read_text().encode("latin-1"))
    add_page(tmp_path, "yaml", "1", header=HEADER.replace("kernelspec:", "a: b: c\nkernelspec:"))
    add_page(tmp_path, "kernel", "1", header=re.sub(r"(\n *name:) \S+", r"\1 nosuch", HEADER))
    add_page(tmp_path, "nameless", "1", header=re.sub(r"\n *name: \S+", "", HEADER))
    add_page(tmp_path, "option", "1", options=":tags: [a\n\n")
    add_page(tmp_path, "tags", "1", options=":tags: 3\n\n")
    add_page(tmp_path, "soon", "1", header=header_with("execution_timeout: soon"))
    dated = HEADER.replace("kernelspec:", "date: 2026-11-23\nkernelspec:")
    add_page(tmp_path, "dated", "1", header=dated)
    add_page(tmp_path, "force", "1", header=header_with("execution_mode: force"))
    add_page(tmp_path, "changing", "open('changing.md', 'a').write('More.\\n')")
    slow = add_page(
        tmp_path, "slow", "import time\ntime.sleep(600)", header=header_with("execution_timeout: 2")
    )
    line = slow.read_text().splitlines().index("import time") + 1
    add_page(tmp_path, "sub/c", "raise ValueError('\\nthe reason')")
    add_page(tmp_path, "still", "print(1 + 1000)", header=header_with('execution_mode: "off"'))
    allowed = header_with("execution_allow_errors: true")
    add_page(tmp_path, "allowed", "1 / 0", header=allowed)
    result = build(tmp_path)
    assert result.returncode == 1
    listed = re.findall(r"WARNING: (\S+\.md.*)", result.stderr.replace("\x1b[39;49;00m", ""))
    told = {said.partition(".md")[0]: said for said in listed}
    assert "latin.md: is not UTF-8 at its byte" in told["latin"]
    assert "yaml.md: has front matter that is not valid YAML: mapping values" in told["yaml"]
    assert "kernel.md: NoSuchKernel: No such kernel named nosuch" in told["kernel"]
    assert "nameless.md: has no valid metadata.kernelspec: 'name' is" in told["nameless"]
    assert "option.md: MystMetadataParsingError: Code cell" in told["option"]
    assert "tags.md: has no valid metadata.tags: 3 is not of type 'array'" in told["tags"]
    assert "soon.md: TypeError: 'execution_timeout' must be of type" in told["soon"]
    assert "dated.md: TypeError: Object of type date is not" in told["dated"]
    assert "force.md: has execution_mode: force" in told["force"]
    assert "changing.md: was changed while the book was built" in told["changing"]
    assert f"slow.md, cell 1, line {line}: took longer than 2 s" in told["slow"]
    assert "sub/c.md, cell 1, line" in told["sub/c"]
    assert "ValueError: the reason" in told["sub/c"]
    assert "12 pages of the book failed" in result.stdout, result.stderr
    for name in (name for name in told if ".html" not in name):
        assert "failed-page" in shown(tmp_path, name), name
    assert "whole" in shown(tmp_path) and "failed-page" not in shown(tmp_path)
    assert "1001" not in shown(tmp_path, "still") and "failed-page" not in shown(tmp_path, "still")
    assert "ZeroDivisionError" in shown(tmp_path, "allowed")
    assert "failed-page" not in shown(tmp_path, "allowed")


@pytest.mark.long
def test_a_build_that_ended_before_it_wrote_its_pages_is_made_up_for(tmp_path):
    """The library alone changes; the build ends when all is read and nothing is written."""
    small_book(tmp_path, "print('measured:', open('../ane_book/part.py').read())")
    (tmp_path / "ane_book").mkdir()
    part = tmp_path / "ane_book" / "part.py"
    part.write_text("first")
    crash = "import os\n\n\ndef setup(app):\n    app.connect('env-check-consistency', end)\n\n\n"
    crash += "def end(app, env):\n    if os.path.exists('crash'):\n        os._exit(9)\n"
    (tmp_path / "book" / "_ext" / "crash.py").write_text(crash)
    config = tmp_path / "_config.yml"
    added = "local_extensions:\n    crash: book/_ext\n"
    config.write_text(config.read_text().replace("local_extensions:\n", added))
    assert build(tmp_path).returncode == 0
    part.write_text("second")
    (tmp_path / "crash").touch()
    assert build(tmp_path).returncode == 9
    assert "measured: first" in shown(tmp_path)
    (tmp_path / "crash").unlink()
    result = build(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "measured: second" in shown(tmp_path)


def test_a_second_build_of_a_book_ends_with_one_sentence(tmp_path):
    small_book(tmp_path, "print('whole')")
    (tmp_path / "_build").mkdir()
    with FileLock(tmp_path / "_build" / "build.lock"):
        result = build(tmp_path)
    assert result.returncode == 1
    assert result.stderr.strip().startswith("This book is being built already")
    assert len(result.stderr.strip().splitlines()) == 1


def _runs(process: int) -> bool:
    """Whether a process is there and has not ended (one that has may wait for its parent)."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux does")
def test_an_interrupted_build_leaves_no_process_behind(tmp_path):
    """Ctrl-C, while a cell waits for a process that it started."""
    started = "import subprocess\n\nprocess = subprocess.Popen(['sleep', '3600'])\n"
    started += "open('part', 'w').write(str(process.pid))\nimport os\n\n"
    small_book(tmp_path, f"{started}os.rename('part', 'started')\nprocess.wait()")
    # Where tests run in the background, their children ignore Ctrl-C unless they say otherwise.
    program = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from jupyter_book.cli.main import main\nmain(['build', 'book'])"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    building = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, **quiet)
    try:
        until((tmp_path / "book" / "started").exists)
        process = int((tmp_path / "book" / "started").read_text())
        assert _runs(process)
        os.kill(building.pid, signal.SIGINT)
        assert building.wait(HANGING) == 1
        until(lambda: not _runs(process))
    finally:
        building.kill()
        building.wait()
