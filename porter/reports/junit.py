"""A DiffReport as JUnit XML, which CI services show beside the tests: a suite a stage, a case a node or check."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from porter.comparison.report import Behaviour, Check, DiffReport, NodeDiff, Stage, Verdict

_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold
_ENDS: dict[Verdict, str] = {"FAIL": "failure", "INCONCLUSIVE": "error", "NOT_COMPARED": "skipped"}
Case = tuple[str, Verdict, str]  # its name, and what came of it


def to_junit(report: DiffReport) -> str:
    """The report; the first suite has one case, the verdict, which fails exactly where porter diff exits non-zero."""
    verdict: Verdict = "PASS" if report.exit_code == 0 else "INCONCLUSIVE" if report.exit_code == 4 else "FAIL"
    suites: list[tuple[str, list[Case]]] = [("verdict", [(report.name, verdict, report.sentence)])]
    suites += [("preflight", [_of_check(check) for check in report.preflight])] if report.preflight else []
    suites += [(f"{stage.name} {stage.dtype}", list(_of_stage(report, stage))) for stage in report.stages]
    root = ElementTree.Element("testsuites", name=f"porter diff {report.name}")
    for name, cases in suites:
        _add_suite(root, f"{report.name} {name}", cases, report.created)
    _count(root, [case for _, cases in suites for case in cases])
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _of_stage(report: DiffReport, stage: Stage) -> Iterator[Case]:
    if stage.name == "behaviour":
        yield from (_of_behaviour(check) for check in report.behaviour if check.dtype == stage.dtype)
        return
    nodes = [node for node in report.nodes if node.dtype == stage.dtype and node.stage == stage.name]
    if stage.name == "exact" and not nodes:  # judged beside another stage: WARN at most, as the stage is
        yield stage.name, stage.status, f"{stage.first}: {stage.detail}" if stage.first else stage.detail
        return
    yield from map(_of_node, nodes)


def _of_node(node: NodeDiff) -> Case:
    said = node.reason
    if node.local is not None and node.status != "PASS":
        said += (
            f"; ρ {node.local.rho:.3g}, port {node.local.e_port:.1e} and reference {node.local.e_ref:.1e} from golden"
        )
    return node.name, node.status, said


def _of_behaviour(check: Behaviour) -> Case:
    return check.name, check.status, f"{check.detail} {check.where}".strip()


def _of_check(check: Check) -> Case:
    return check.name, check.status, check.detail


def _add_suite(root: ElementTree.Element, name: str, cases: list[Case], created: str) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name), timestamp=created)
    _count(suite, cases)
    for case, status, said in cases:
        element = ElementTree.SubElement(suite, "testcase", name=_clean(case), classname=_clean(name))
        if status in _ENDS:
            ending = ElementTree.SubElement(element, _ENDS[status], message=_clean(said))
            ending.text = _clean(said) if status != "NOT_COMPARED" else None
        elif status == "WARN":
            ElementTree.SubElement(element, "system-out").text = _clean(f"WARN: {said}")


def _count(element: ElementTree.Element, cases: list[Case]) -> None:
    ends = [_ENDS.get(status) for _, status, _ in cases]
    counts = {"tests": len(cases), "failures": ends.count("failure"), "errors": ends.count("error")}
    for key, count in {**counts, "skipped": ends.count("skipped")}.items():
        element.set(key, str(count))


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("�", text)
