"""What would a run need? Parameters, memory, FLOPs, hours and cost, known before it is paid for."""
