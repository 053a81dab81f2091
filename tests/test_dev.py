"""``python3 dev.py``: what it says where it cannot do its work, and how it makes its venv."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dev

ROOT = Path(__file__).resolve().parent.parent


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "dev.py", *arguments], cwd=folder, capture_output=True, text=True
    )


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A clone of a project with two commits."""
    project = tmp_path / "project"
    (project / "kernels").mkdir(parents=True)
    kernel = project / "kernels" / "v0.cu"
    git(project, "init", "--initial-branch=main")
    for text in ("first", "second"):
        kernel.write_text(text)
        shutil.copy(ROOT / "dev.py", project)
        git(project, "add", ".")
        git(project, "commit", "--message", text)
    return project


def test_help_names_every_command():
    result = run(ROOT, "--help")
    assert result.returncode == 0
    for command in ("site", "test", "gate", "publish", "gpu"):
        assert f"dev.py {command}" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sites"],
        ["site", "--machines", "x"],
        ["site", "--missing", "3", "HEAD~3..HEAD"],
        ["gate", "HEAD"],
        ["gpu", "0"],
    ],
)
def test_bad_arguments_are_refused(arguments):
    assert run(ROOT, *arguments).returncode == 2


@pytest.mark.case("4.4")
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("which", [(), ("HEAD^!",), ("--missing", "5")])
def test_uncommitted_changes_are_refused(checkout, which, staged):
    """asv would measure the last commit in their stead."""
    (checkout / "kernels" / "v0.cu").write_text("third")
    if staged:
        git(checkout, "add", ".")
    result = run(checkout, "site", *which)
    assert result.returncode == 2
    assert result.stderr == (
        "dev.py: asv measures commits, and these changes are in none: kernels/v0.cu\n"
    )


@pytest.mark.case("4.4")
@pytest.mark.parametrize(
    ("asked_for", "measured"),
    [
        ([], "HEAD^!"),
        (["HEAD"], "HEAD^!"),
        (["main~1"], "main~1^!"),
        (["v1"], "v1^!"),
        *(([given], given) for given in ("HEAD^!", "HEAD~1..HEAD", "v1~1..", "main --all")),
        (["main --since='1 week ago'"], "main --since='1 week ago'"),
        *(([given], given) for given in ("ALL", "NEW", "EXISTING", "TAGS", "HASHFILE:/dev/null")),
    ],
)
def test_one_commit_is_measured_unless_told_otherwise(
    asv, monkeypatch, checkout, asked_for, measured
):
    """A bare revision is all of a history to asv."""
    git(checkout, "tag", "--annotate", "--message=released", "v1")
    monkeypatch.setattr(dev, "ROOT", checkout)
    monkeypatch.setattr(dev.sys, "argv", ["dev.py", "site", *asked_for])
    assert dev.main() == 0
    (measuring, _), (publishing, _) = asv
    assert measuring[-1] == measured
    assert publishing == ("-m", "asv", "publish")


@pytest.mark.parametrize("nothing", ["nonsense", "nonsense..HEAD", "dev.py", "new", "one's"])
def test_what_is_no_commit_is_refused(checkout, nothing):
    """Before anything is installed, measured or published."""
    result = run(checkout, "site", nothing)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"dev.py: {nothing!r} is no commit of this repository, nor a range of them\n"
    )


@pytest.mark.case("4.7")
def test_a_shallow_clone_is_refused(checkout, tmp_path):
    git(tmp_path, "clone", "--depth=1", checkout.as_uri(), "shallow")
    result = run(tmp_path / "shallow", "site")
    assert result.returncode == 2
    assert result.stderr == (
        "dev.py: this clone is shallow, and the history needs all commits: git fetch --unshallow\n"
    )


def test_a_folder_without_history_is_refused(tmp_path):
    shutil.copy(ROOT / "dev.py", tmp_path)
    result = run(tmp_path, "site")
    assert result.returncode == 2
    assert "dev.py: git rev-parse failed: " in result.stderr


def test_git_s_reason_is_told_in_one_line(checkout, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for variable in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):  # which may allow it
        monkeypatch.setenv(variable, os.devnull)
    result = run(checkout, "site")
    assert result.returncode == 2
    assert "dubious ownership" in result.stderr
    assert "safe.directory" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_old_python_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(dev.sys, "version_info", (3, 10, 12))
    monkeypatch.setattr(dev.sys, "argv", ["dev.py", "test"])
    assert dev.main() == 2
    assert "3.11 or newer is needed" in capsys.readouterr().err


def test_packages_are_pinned_unless_told_otherwise(monkeypatch):
    environments = []

    def record(command, *, env, **_):
        environments.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(dev.subprocess, "run", record)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    dev.run("-m", "pip")
    monkeypatch.setenv("PIP_CONSTRAINT", "")
    dev.run("-m", "pip")
    pinned, free = environments
    assert pinned["PIP_CONSTRAINT"] == (ROOT / "constraints.txt").as_uri()
    assert free["PIP_CONSTRAINT"] == ""
    assert pinned["PATH"].split(os.pathsep)[0] == str(ROOT / ".venv" / "bin")


@pytest.mark.case("3.5")
@pytest.mark.parametrize(
    ("cuda", "pins"), [("12.4", "constraints-cuda12.txt"), ("13.0", "constraints.txt")]
)
def test_the_driver_decides_what_is_pinned(monkeypatch, cuda, pins):
    from benchmarks import gpu, gpu_packages

    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("a GPU", "0", (9, 0), cuda))
    assert dev.constraints() == (ROOT / pins).as_uri()
    assert dev.packages_for_gpu() == gpu_packages.PACKAGES[int(cuda.split(".")[0])]


@pytest.mark.case("3.4")
@pytest.mark.parametrize("command", ["test", "publish"])
def test_a_driver_that_is_too_old_is_refused(monkeypatch, capsys, command):
    from benchmarks import gpu

    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("a GPU", "0", (8, 0), "11.4"))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    monkeypatch.setattr(dev.subprocess, "run", pytest.fail)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev.sys, "argv", ["dev.py", command])
    assert dev.main() == 2
    assert "is for CUDA up to 11.4, and 12.0 is needed" in capsys.readouterr().err


@pytest.fixture
def history(checkout, monkeypatch):
    """The clone as dev.py's own, with a third commit that changes what is measured and a fourth
    that does not; gives all four, the oldest first."""
    (checkout / "kernels" / "v0.cu").write_text("third")
    git(checkout, "commit", "--all", "--message", "third")
    (checkout / "README.md").write_text("fourth")
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "fourth")
    monkeypatch.setattr(dev, "ROOT", checkout)
    return dev.git("log", "--reverse", "--format=%H").split()


def record(checkout, machine, commit):
    folder = checkout / "results" / machine
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").touch()
    (folder / f"{commit[:8]}-virtualenv-py3.12.json").touch()


@pytest.mark.case("5.5", "5.10")
def test_commits_without_results_are_those_that_change_what_is_measured(checkout, history):
    """Of several commits pushed at once each gets a point, whatever runs were dropped."""
    first, second, third, _documentation = history
    assert dev.commits_without_results("h200") == [third, second, first]
    record(checkout, "h200", second)
    assert dev.commits_without_results("h200") == [third, first]
    assert dev.commits_without_results("a100") == [third, second, first]


@pytest.fixture
def asv(monkeypatch):
    """What asv is called with, and the commits that it is told to measure."""
    calls = []

    def run(*arguments):
        hashes = arguments[-1].removeprefix("HASHFILE:")
        listed = Path(hashes).read_text().split() if hashes != arguments[-1] else []
        calls.append((arguments, listed))
        return 0

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(dev, "install", lambda *requirements: None)
    monkeypatch.setattr(dev, "describe_machine", lambda name: None)
    return calls


def test_missing_results_are_measured_the_newest_first(history, asv):
    _first, second, third, _documentation = history
    assert dev.site("h200", "HEAD^!", missing=2) == 0
    (measuring, commits), (publishing, _) = asv
    assert measuring[:3] == ("-m", "asv", "run")
    assert measuring[-3:-1] == ("--machine", "h200")
    assert commits == [third, second]
    assert publishing == ("-m", "asv", "publish")


def test_where_nothing_is_missing_nothing_is_measured(checkout, history, asv):
    """asv would fail for want of commits."""
    for commit in history:
        record(checkout, "h200", commit)
    assert dev.site("h200", "HEAD^!", missing=2) == 0
    assert [arguments for arguments, _ in asv] == [("-m", "asv", "publish")]


@pytest.fixture
def gate(monkeypatch, checkout):
    """Runs ``dev.py gate`` on a branch and a main that has moved on; gives what the instrument's
    gate was called with, and where the branch began."""
    monkeypatch.setattr(dev, "ROOT", checkout)
    monkeypatch.setattr(dev, "install_everything", lambda: False)
    fork_point = dev.git("rev-parse", "main")
    git(checkout, "checkout", "-b", "branch")
    git(checkout, "commit", "--allow-empty", "--message", "on the branch")
    git(checkout, "checkout", "main")
    git(checkout, "commit", "--allow-empty", "--message", "on main")

    def gate(*arguments, text="", status=0):
        calls = []

        def run(*command):
            calls.append(command)
            (checkout / "gate.md").write_text("slower")
            return status

        monkeypatch.setattr(dev, "run", run)
        monkeypatch.setenv("PULL_REQUEST_TEXT", text)
        monkeypatch.setattr(dev.sys, "argv", ["dev.py", "gate", *arguments, "main", "branch"])
        assert dev.main() == status
        ((module, benchmarks, command, *options),) = calls
        assert (module, benchmarks, command) == ("-m", "benchmarks", "gate")
        return options

    gate.fork_point = fork_point
    return gate


def test_the_gate_compares_with_where_the_branch_began(gate):
    assert gate() == [gate.fork_point, "branch"]
    assert gate("--static", "--report", "gate.md") == [
        "--static",
        "--markdown=gate.md",
        gate.fork_point,
        "branch",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Faster by far.\n\nAccept slowdown: exact now\r\nMore.", "exact now"),
        ("accept slowdown:   --static $(touch x); `y`", "--static $(touch x); `y`"),
        ("We do not Accept slowdown: never", None),
        ("Accept slowdown:", None),
        ("Accept slowdown:\nBut why?", None),
        ("", None),
    ],
)
def test_a_reason_in_the_pull_request_is_one_argument_and_no_more(gate, text, reason):
    accepting = [option for option in gate(text=text) if option.startswith("--accept")]
    assert accepting == ([] if reason is None else [f"--accept={reason}"])


def test_a_failing_gate_s_report_is_shown(gate, monkeypatch, tmp_path):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    gate("--report", "gate.md", status=1)
    assert summary.read_text() == "slower"


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Puts a program in place of nvidia-smi that ends with a status, and a GPU beside it."""
    from benchmarks import gpu

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("a GPU", "0", (9, 0), "13.0"))
    monkeypatch.setattr(dev, "install", lambda *requirements: None)
    monkeypatch.setattr(dev, "run", lambda *arguments: 0)

    def install(status):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)

    return install


def test_a_gpu_that_works(nvidia_smi):
    nvidia_smi(0)
    assert dev.check_gpu() == 0


@pytest.mark.case("5.3")
@pytest.mark.parametrize("broken", ["no driver", "driver", "no device", "product"])
def test_a_gpu_that_does_not_work_is_infrastructure(nvidia_smi, monkeypatch, capsys, broken):
    from benchmarks import gpu

    if broken != "no driver":
        nvidia_smi(9 if broken == "driver" else 0)
    if broken == "no device":
        monkeypatch.setattr(gpu, "find", lambda: None)
    if broken == "product":
        monkeypatch.setattr(dev, "run", lambda *arguments: 1)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setattr(dev.sys, "argv", ["dev.py", "gpu"])
    assert dev.main() == 2
    captured = capsys.readouterr()
    assert "::error title=Infrastructure::" in captured.out
    assert captured.err.startswith("dev.py: infrastructure: ")


@pytest.mark.case("5.2", "5.8")
@pytest.mark.parametrize(
    ("planted", "failure"),
    [
        ("", ""),
        ("cupy.asarray = lambda values, dtype: numpy.ones((2, 2))", "a wrong 2x2 product"),
        ("alone.require_alone = busy", "used by another"),
    ],
)
def test_the_check_computes_a_product_on_an_idle_gpu(planted, failure):
    """With NumPy in CuPy's place."""
    prelude = f"""
import sys, numpy, types
from benchmarks import gpu

def busy(own_processes):
    raise gpu.GpuBusyError("used by another")

cupy = types.SimpleNamespace(asarray=numpy.array, float32=numpy.float32)
sys.modules["cupy"] = cupy
alone = types.SimpleNamespace(require_alone=lambda own_processes: None)
gpu.find, gpu.Monitor = (lambda: None), (lambda device: alone)
{planted}
"""
    command = [sys.executable, "-c", prelude + dev.PRODUCT]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert bool(check.returncode) == bool(failure)
    assert failure in check.stderr


@pytest.fixture
def venv(monkeypatch, tmp_path):
    """Where dev.py makes the virtual environment, and without which modules Python is there."""
    monkeypatch.setattr(dev, "VENV", tmp_path / "venv")
    monkeypatch.setattr(dev, "PYTHON", tmp_path / "venv" / "bin" / "python")
    find_spec = importlib.util.find_spec

    def lacking(*missing):
        monkeypatch.setattr(
            dev.importlib.util,
            "find_spec",
            lambda name: None if name in missing else find_spec(name),
        )

    return lacking


def test_the_environment_is_made_with_python_s_own_module(venv):
    venv()
    dev.create_venv()
    assert subprocess.run([dev.PYTHON, "-m", "pip", "--version"]).returncode == 0


def test_python_without_ensurepip_uses_virtualenv(venv, monkeypatch):
    """Debian has ensurepip in a package of its own."""
    venv("ensurepip")
    calls = []

    def record(command, env=None):
        calls.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(dev.subprocess, "run", record)
    dev.create_venv()
    installing, creating = calls
    assert "--target" in installing  # which an externally managed Python allows
    assert creating[1:] == ["-m", "virtualenv", str(dev.VENV)]


def test_without_any_pip_the_missing_package_is_named(venv):
    venv("ensurepip", "pip")
    with pytest.raises(dev.SetupError, match="apt install python3-venv"):
        dev.create_venv()


def test_on_a_gpu_the_tests_that_need_it_alone_run_by_themselves(monkeypatch):
    """With xdist every worker computes on the GPU."""
    from benchmarks import gpu

    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("a GPU", "0", (9, 0), "13.0"))
    monkeypatch.setattr(dev, "install", lambda *requirements: None)
    calls = []

    def record(*arguments):
        calls.append(arguments)
        return 0 if "not alone" in arguments else dev.NO_TESTS_SELECTED

    monkeypatch.setattr(dev, "run", record)
    assert dev.test(["-k", "residual"]) == 0
    parallel, alone = calls
    assert "-n" in parallel
    assert "-n" not in alone
    assert alone[-4:] == ("-m", "alone", "-k", "residual")


SKIPPING = """
import pytest

def test_right():
    pass

@pytest.mark.parametrize("reason", ["needs two GPUs", "there is no usable GPU"])
def test_skipped(reason):
    pytest.skip(reason)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """pytest's report of two skipped tests, one of them with an excuse."""
    folder = tmp_path_factory.mktemp("skipping")
    (folder / "test_x.py").write_text(SKIPPING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "report.xml"


@pytest.mark.case("5.7")
@pytest.mark.parametrize(("required", "status"), [("1", 1), ("0", 0)])
def test_where_a_gpu_is_required_no_test_is_skipped(monkeypatch, capsys, report, required, status):
    def run(*arguments):
        (target,) = (word for word in arguments if word.startswith("--junitxml="))
        shutil.copy(report, target.partition("=")[2])
        return 0

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(dev, "install_everything", lambda: True)
    monkeypatch.setenv("SGEMM_REQUIRE_GPU", required)
    assert dev.test([]) == status
    output = capsys.readouterr().out
    assert ("test_skipped[there is no usable GPU]" in output) == bool(status)
    assert "needs two GPUs" not in output


@pytest.mark.case("4.6")
def test_a_machine_is_described_once(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(dev, "run", lambda *arguments, quiet=False: calls.append(arguments))
    dev.describe_machine("laptop")
    assert calls[0] == ("-m", "asv", "machine", "--yes")  # nothing is asked
    assert calls[-1][:5] == ("-m", "asv", "machine", "--machine", "laptop")
    calls.clear()
    (tmp_path / ".asv-machine.json").write_text(json.dumps({"laptop": {}, "version": 1}))
    dev.describe_machine("laptop")
    assert calls == []


@pytest.mark.parametrize(("status", "shown"), [(0, ""), (3, "to stdout\nto stderr\n")])
def test_what_is_quiet_is_shown_where_it_fails(monkeypatch, capfd, status, shown):
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    code = (
        f"import sys; print('to stdout'); print('to stderr', file=sys.stderr); sys.exit({status})"
    )
    assert dev.run("-c", code, quiet=True) == status
    assert capfd.readouterr() == (shown, "")
