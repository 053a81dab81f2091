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


def test_help_names_both_commands():
    result = run(ROOT, "--help")
    assert result.returncode == 0
    assert "dev.py site" in result.stdout
    assert "dev.py test" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["sites"], ["site", "--machines", "x"]])
def test_bad_arguments_are_refused(arguments):
    assert run(ROOT, *arguments).returncode == 2


def test_uncommitted_changes_are_refused(checkout):
    """asv would measure the last commit in their stead."""
    (checkout / "kernels" / "v0.cu").write_text("third")
    result = run(checkout, "site")
    assert result.returncode == 2
    assert result.stderr == (
        "dev.py: asv measures commits, and these changes are in none: kernels/v0.cu\n"
    )


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


def test_an_old_python_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(dev.sys, "version_info", (3, 10, 12))
    monkeypatch.setattr(dev.sys, "argv", ["dev.py", "test"])
    assert dev.main() == 2
    assert "3.11 or newer is needed" in capsys.readouterr().err


def test_packages_are_pinned_unless_told_otherwise(monkeypatch):
    environments = []

    def record(command, cwd, env):
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


def test_a_machine_is_described_once(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    calls = []
    monkeypatch.setattr(dev, "run", lambda *arguments: calls.append(arguments))
    dev.describe_machine("laptop")
    assert calls[-1][:5] == ("-m", "asv", "machine", "--machine", "laptop")
    calls.clear()
    (tmp_path / ".asv-machine.json").write_text(json.dumps({"laptop": {}, "version": 1}))
    dev.describe_machine("laptop")
    assert calls == []
