"""From a case to a trial: windows, samples, and what is asked around them."""
