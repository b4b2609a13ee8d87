"""Criteria that an audit must meet: conditions on its measures, and policies that state them before the audit."""
