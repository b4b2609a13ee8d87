"""Settings of the documentation site, built by ``make docs``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the kernels of the notebooks

from classwise.core.version import __version__  # noqa: E402

project = "classwise"
author = "The classwise developers"
project_copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "tools.sphinx_results",
]
exclude_patterns = ["results/papers/results"]
source_suffix = {".md": "myst-nb"}

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# The pages of the benchmarks have headings of level 3 below their title.
suppress_warnings = ["myst.header"]

nb_execution_mode = {"on": "force", "off": "off"}[os.environ.get("NOTEBOOKS", "on")]
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True

# Indented blocks are commands.
highlight_language = "sh"

# A single backtick in a docstring is code, as in the rest of the sources.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = f"classwise {release}"
html_static_path = ["_static"]
html_css_files = ["classwise.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
}
html_sidebars = {"index": [], "papers/index": []}
