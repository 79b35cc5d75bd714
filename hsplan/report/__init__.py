"""Capacity of many specs for CI: one versioned JSON, summaries for people and servers, what changed between two."""

from hsplan.report.build import report
from hsplan.report.read import read_report
from hsplan.report.value import Report

__all__ = ["Report", "read_report", "report"]
