"""What users give: settings, arguments, names, limits."""
