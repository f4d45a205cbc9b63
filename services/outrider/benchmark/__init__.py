"""`outrider bench`: measures a stack through its public API; also used by the scripts in bench/."""
