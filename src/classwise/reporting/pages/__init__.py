"""Pages: one self-contained HTML file per result, written by `classwise.reporting.pages.report`."""
