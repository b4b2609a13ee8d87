"""Pages in headless Chromium: measurements of `measure.js` at several widths in both themes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE", ROOT / "build/browser/node_modules/axe-core/axe.min.js"))
"""The script of axe-core, which `make test-pages` installs."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
MEDIA = {"light": "not all", "dark": "screen"}
SCREENS = (("light", 1200), ("light", 390), ("dark", 1200))
"""Theme and width in pixels."""
_DARK = "@media screen and (prefers-color-scheme: dark)"
_HOST = """<!doctype html><meta charset="utf-8"><pre id="found"></pre><script>
const jobs = JOBS, found = {};
let frame;
function next() {
  if (frame) frame.remove();
  if (!jobs.length) {
    document.getElementById("found").textContent = "BEGIN" + JSON.stringify(found) + "END";
    return;
  }
  frame = document.createElement("iframe");
  frame.width = jobs[0].width;
  frame.height = 900;
  frame.src = jobs[0].page;
  document.body.append(frame);
}
addEventListener("message", (event) => { found[jobs.shift().name] = event.data; next(); });
next();
</script>"""


def measure(pages: Mapping[str, str], seconds: int = 300) -> dict[str, dict[str, Any]]:
    """Measure pages on each of the `SCREENS`.

    Args:
        pages: HTML by name.
        seconds: time limit.

    Returns:
        The message of `measure.js` by ``name, theme, width``.
    """
    script = f"<script>{AXE.read_text(encoding='utf-8')}</script>"
    script += f"<script>{(Path(__file__).parent / 'measure.js').read_text(encoding='utf-8')}</script>"
    with tempfile.TemporaryDirectory() as name:
        folder, jobs = Path(name), []
        for page, text in pages.items():
            for theme, width in SCREENS:
                themed = text.replace(_DARK, f"@media {MEDIA[theme]}").replace("scheme: light dark", f"scheme: {theme}")
                assert themed.count("</body>") == 1
                file = folder / f"{page}-{theme}.html"
                file.write_text(themed.replace("</body>", f"{script}</body>"), encoding="utf-8")
                jobs.append({"name": f"{page}, {theme}, {width}", "page": file.name, "width": width})
        (folder / "host.html").write_text(_HOST.replace("JOBS", json.dumps(jobs)), encoding="utf-8")
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command += ["--allow-file-access-from-files", "--disable-dev-shm-usage", "--virtual-time-budget=10000000"]
        command += ["--window-size=1300,1000", "--dump-dom", (folder / "host.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    found = re.search("BEGIN(.*?)END</pre>", done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    measured: dict[str, dict[str, Any]] = json.loads(unescape(found[1]))
    return measured
