"""What tests of the manifest job share."""

import pytest
from markupsafe import Markup

from vlmill.pipelines.manifest import report
from vlmill.pipelines.manifest.published import report as published_report


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Leaves charts out of reports: they take ten times as long as the job on small files."""
    for module in (published_report, report) if "charts" not in request.node.name else ():
        monkeypatch.setattr(module, "pair_charts", lambda _: Markup(""))
