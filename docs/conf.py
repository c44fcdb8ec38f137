"""Settings of the documentation site. `make docs` builds it.

The source directory is the root of the repository, so that links between pages, results and benchmarks are the same
here and in the repository.
"""

from __future__ import annotations

import unstale

project = "unstale"
author = "the authors of unstale"
version = release = unstale.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = ["docs/*.md", "results/REPORT.md", "benchmarks/README.md", "benchmarks/results/*.md"]
include_patterns += ["CHANGELOG.md", "CONTRIBUTING.md"]
root_doc = "docs/index"

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True

html_theme = "furo"
html_title = f"unstale {release}"
html_copy_source = False
html_show_copyright = False  # see LICENSE
html_static_path = ["_static"]
html_css_files = ["unstale.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}  # the root of the site leads to the front page
