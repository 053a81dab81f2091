"""Plugins of asv: which direction of a benchmark is better, the pages beside asv's own, and no run
whose results would be lost.

asv takes every rise for a loss. A benchmark whose function has ``higher_is_better = True`` gains by
a rise: then its falls alone are regressions, on asv's Regressions page and in its feed.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asv.commands.run import Run
from asv.environment import get_environments, is_existing_only
from asv.graph import Graph
from asv.plugins.regressions import Regressions
from asv.publishing import OutputPublisher
from asv.util import UserError

from benchmarks.pages import asv_index, site


class DirectedRegressions(Regressions):  # type: ignore[misc]
    """asv's detection finds rises only: it is given the reciprocals of what is better the higher it
    is, and what it finds is turned back. Overwrites what ``Regressions`` has written."""

    order = Regressions.order + 1

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        super().publish(conf, repo, benchmarks, DirectedGraphs(graphs, benchmarks), revisions)

    @classmethod
    def _process_regression(
        cls,
        regressions: list[Any],
        revision_to_hash: Any,
        repo: Any,
        all_params: Any,
        graph_data: Any,
        graph: Graph,
    ) -> None:
        found: list[Any] = []
        super()._process_regression(found, revision_to_hash, repo, all_params, graph_data, graph)
        if isinstance(graph, Reciprocals):
            for regression in found:
                *_, last, best, jumps = regression
                regression[-3:] = [
                    1 / last,
                    1 / best,
                    [(before, after, 1 / old, 1 / new) for before, after, old, new in jumps],
                ]
        regressions += found


class DirectedGraphs:
    """A ``GraphSet`` to read from, in which a rise is always a loss."""

    def __init__(self, graphs: Any, benchmarks: Any) -> None:
        self._graphs = graphs
        self._benchmarks = benchmarks

    def get_params(self) -> Any:
        return self._graphs.get_params()

    def __iter__(self) -> Iterator[tuple[str, Graph]]:
        for path, graph in self._graphs:
            benchmark = self._benchmarks.get(graph.benchmark_name, {})
            yield path, Reciprocals(graph) if benchmark.get("higher_is_better") else graph


class Reciprocals(Graph):  # type: ignore[misc]
    """A graph of the reciprocals of another's values; no value where that has none above 0."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.benchmark_name, graph.params)
        for revision, values, weights in graph.get_data():
            if graph.scalar_series:
                self.add_data_point(revision, *_reciprocal(values, weights))
            else:
                pairs = map(_reciprocal, values, weights)
                self.add_data_point(revision, *map(list, zip(*pairs, strict=True)))


def _reciprocal(value: float | None, weight: float | None) -> tuple[float | None, float | None]:
    """The reciprocal, and its weight: a weight is one over the width of an interval."""
    if value is None or not value > 0:
        return None, None
    return 1 / value, weight and weight * value**2


class Pages(OutputPublisher):  # type: ignore[misc]
    """Writes the project's own pages, and links them from asv's."""

    name = "ladder"
    button_label = "Ladder"
    description = "The versions side by side"
    order = DirectedRegressions.order + 1

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        html, root = Path(conf.html_dir), Path(conf.repo)
        # What asv shows: it warns of the results of other commits, and leaves them out.
        published = set(repo.get_tags().values()).union(
            *(repo.get_branch_commits(branch) for branch in conf.branches)
        )
        shown = {commit: place for commit, place in revisions.items() if commit in published}
        subjects = _subjects(root, shown)
        site.write(html, site.read(root, Path(conf.results_dir), shown, subjects))
        asv_index.adapt(html)


def _subjects(repository: Path, commits: Any) -> dict[str, str]:
    """The first line of each commit's message."""
    log = subprocess.run(
        ["git", "-C", repository, "log", "--no-walk", "--format=%H %s", "--stdin"],
        input="\n".join(commits),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split(" ", 1) for line in log.stdout.splitlines())


_run = Run.run_from_conf_args


def _run_what_is_kept(conf: Any, args: Any, **kwargs: Any) -> Any:
    """``asv run``; UserError where asv would measure for long, and then drop all of it unsaid."""
    if args.env_spec and not (args.set_commit_hash or args.dry_run):
        environments = list(get_environments(conf, args.env_spec))
        if environments and is_existing_only(environments):
            raise UserError(
                "asv keeps no results of an existing environment unless it is told whose they are: "
                "add --set-commit-hash=$(git rev-parse HEAD), or --dry-run if they are not wanted"
            )
    return _run(conf, args, **kwargs)


Run.run_from_conf_args = _run_what_is_kept  # asv has no hook for that
