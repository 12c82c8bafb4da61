"""The loop IR: what schedules lower to and emitters spell."""
