"""Pages of HTML that need no network: tables and pictures of a run, a gate, a history."""
