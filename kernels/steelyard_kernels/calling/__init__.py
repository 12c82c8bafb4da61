"""From a build to a launch: arguments found, checked, packed."""
